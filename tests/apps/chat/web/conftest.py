"""A running chat, two people, and Debian's Chromium for the tests of the page."""

import os
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.apps.chat.running import Person, Up, running
from tests.apps.chat.web.tab import Tab

CHROMIUM = "/usr/bin/chromium"
expect.set_options(timeout=20_000)  # a busy machine is no fault of the page
WIDE = {"width": 1200, "height": 800}
OpenTab = Callable[..., Tab]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if not os.path.exists(CHROMIUM):
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have Chromium: run scripts/system-packages")
        pytest.skip("needs Chromium: run scripts/system-packages")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield found
        found.close()


@pytest.fixture(scope="package")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("page") / "root", "sends=1000", "burst=1000", "registrations=1000") as found:
        yield found


@pytest.fixture(scope="package")
def mina(up: Up) -> Iterator[Person]:
    person = Person(up.address, "mina")
    yield person
    person.close()


@pytest.fixture(scope="package")
def kenji(up: Up) -> Iterator[Person]:
    person = Person(up.address, "kenji")
    yield person
    person.close()


@pytest.fixture
def open_tab(browser: Browser, up: Up) -> Iterator[OpenTab]:
    """Open a page in a browser of its own; at the end nothing may have gone wrong in any of them."""
    tabs: list[Tab] = []

    def open_one(person: Person | None = None, **options: object) -> Tab:
        context = browser.new_context(**{"viewport": WIDE, **options})  # type: ignore[arg-type]  # its keywords
        tabs.append(Tab(context, up.address, person))
        return tabs[-1]

    yield open_one
    for tab in tabs:
        tab.context.close()
    assert [words for tab in tabs for words in tab.wrong] == []
