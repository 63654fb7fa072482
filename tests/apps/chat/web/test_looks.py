"""How the page looks and is reached: dark and light, narrow and wide, by keyboard and by screen readers.

With PABAL_PICTURES=1 the pictures of the documentation are made anew.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.apps.chat.running import PASSWORD, Person, Up
from tests.apps.chat.web.conftest import OpenTab
from tests.apps.chat.web.scene import played
from tests.services.browser import CONTRAST, NAMELESS, shoot


@pytest.fixture(scope="package")
def cast(up: Up) -> Iterator[dict[str, Person]]:
    people = {name: Person(up.address, name, exactly=True) for name in ("mina", "kenji", "ana")}
    yield people
    for person in people.values():
        person.close()


def test_the_page_is_readable_in_light_and_in_dark(open_tab: OpenTab, cast: dict[str, Person], tmp_path: Path) -> None:
    tab = played(open_tab, cast, "Relay station", reduced_motion="reduce")
    for scheme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=scheme)
        bright = tab.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0] > 127")
        assert bright is (scheme == "light")
        ratio, words = tab.evaluate(CONTRAST)
        assert ratio >= 4.5, words
        shoot(tab.page, f"chat-{scheme}", tmp_path)


def test_a_narrow_page_shows_one_thing_at_a_time(open_tab: OpenTab, cast: dict[str, Person], tmp_path: Path) -> None:
    tab = played(open_tab, cast, "On the road", viewport={"width": 390, "height": 780}, color_scheme="light")
    expect(tab.page.locator("#room")).to_be_visible()
    expect(tab.page.locator(".sidebar")).to_be_hidden()
    shoot(tab.page, "chat-narrow", tmp_path)
    tab.page.click("#members-button")
    expect(tab.page.locator("#members-panel")).to_be_visible()
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator("#members-panel")).to_be_hidden()
    tab.page.click("#back")
    expect(tab.page.locator(".sidebar")).to_be_visible()
    expect(tab.page.locator("#room")).to_be_hidden()


@pytest.mark.parametrize("width", [320, 390, 720, 1024, 1600])
def test_nothing_is_wider_than_the_page(open_tab: OpenTab, mina: Person, kenji: Person, width: int) -> None:
    mina.make_room(f"Width {width} {'x' * 60}", kenji)
    tab = open_tab(mina, viewport={"width": width, "height": 700})
    tab.enter(f"Width {width}")
    tab.write("long" * 200)
    tab.write("https://example.org/" + "a" * 300)
    tab.stored("https://example.org/")
    for scroller in ("document.documentElement", "document.querySelector('#scroller')"):
        assert tab.evaluate(f"{scroller}.scrollWidth - {scroller}.clientWidth") == 0
    expect(tab.page.locator("#send")).to_be_in_viewport(ratio=1)
    expect(tab.page.locator("#room-menu-button")).to_be_in_viewport(ratio=1)


def test_all_of_it_can_be_done_by_keyboard(open_tab: OpenTab, mina: Person) -> None:
    for name in ("By keys one", "By keys two"):
        mina.make_room(name)
    tab = open_tab()
    for text in (mina.email, PASSWORD):
        tab.page.keyboard.type(text)
        tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("Enter")
    tab.linked()
    expect(tab.row("By keys one")).to_be_visible()
    tab.page.focus("#new-room")
    tab.page.keyboard.press("Tab")
    expect(tab.row("By keys two")).to_be_focused()
    tab.page.keyboard.press("ArrowDown")
    expect(tab.row("By keys one")).to_be_focused()
    tab.page.keyboard.press("Enter")
    expect(tab.row("By keys one")).to_have_attribute("aria-current", "true")
    expect(tab.page.locator("#text")).to_be_focused()
    tab.page.keyboard.type("written without a mouse")
    tab.page.keyboard.press("Enter")
    tab.stored("written without a mouse")
    tab.page.keyboard.press("Shift+Tab")
    tab.page.keyboard.press("Shift+Tab")
    expect(tab.page.locator("#scroller")).to_be_focused()
    outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_everything_that_can_be_used_has_a_name(open_tab: OpenTab, cast: dict[str, Person]) -> None:
    tab = played(open_tab, cast, "Named")
    assert tab.evaluate(NAMELESS) == []
    snapshot = tab.page.locator("body").aria_snapshot()
    for words in (
        'main "Named',
        'region "Messages"',
        'textbox "Message"',
        'button "More"',
        'navigation "Your rooms"',
    ):
        assert words in snapshot


def test_the_sign_in_page_is_readable(open_tab: OpenTab, tmp_path: Path) -> None:
    for scheme in ("light", "dark"):
        tab = open_tab(color_scheme=scheme)
        expect(tab.page.locator("#signin")).to_be_visible()
        assert tab.evaluate(CONTRAST)[0] >= 4.5
    shoot(tab.page, "chat-sign-in", tmp_path)
