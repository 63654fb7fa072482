"""A running chat, two people, and Debian's Chromium for the tests of the page."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from tests.apps.chat.running import Person, Up, running
from tests.apps.chat.web.tab import Tab
from tests.services.browser import running as browser_running

WIDE = {"width": 1200, "height": 800}
OpenTab = Callable[..., Tab]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with browser_running() as found:
        yield found


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
