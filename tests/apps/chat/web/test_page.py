"""The page does what people expect of a chat, in a real browser against a real `pabal chat up`."""

import json
import re
import struct
import time
import uuid
import zlib

import httpx2
import pytest
from playwright.sync_api import expect

from tests.apps.chat.running import PASSWORD, Person
from tests.apps.chat.web.conftest import OpenTab
from tests.apps.chat.web.tab import Tab
from tests.waiting import until


def picture(width: int = 64, height: int = 48) -> bytes:
    """Return a PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" + b"".join(bytes((x % 256, 160, 120)) for x in range(width))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row * height)) + chunk(b"IEND", b"")
    )


def fill_in(tab: Tab, email: str, password: str) -> None:
    tab.page.fill("#email", email)
    tab.page.fill("#password", password)
    tab.page.click("#signin-submit")


def test_a_newcomer_makes_an_account_and_a_room_and_writes(open_tab: OpenTab) -> None:
    tab = open_tab()
    tab.page.click("text=Create an account")
    tab.page.fill("#name", "Newcomer of this test")
    fill_in(tab, f"new-{uuid.uuid4().hex}@example.org", PASSWORD)
    expect(tab.page.locator("#me-name")).to_have_text("Newcomer of this test")
    tab.page.click("#first-room")
    tab.page.fill("#create-name", "My first room")
    tab.page.click("#create-form .primary")
    expect(tab.page.locator("#room-title")).to_have_text("My first room")
    expect(tab.page.locator("#empty-title")).to_have_text("This is the beginning of My first room")
    tab.write("Hello, nobody")
    tab.stored("Hello, nobody")
    expect(tab.page.locator("#empty-room")).to_be_hidden()
    tab.page.reload()  # the room is in the address
    tab.stored("Hello, nobody")
    assert tab.shown() == ["Hello, nobody"]


def test_a_wrong_password_is_told_and_signing_out_forgets_the_token(open_tab: OpenTab, mina: Person) -> None:
    tab = open_tab()
    fill_in(tab, mina.email, "not the password")
    expect(tab.page.locator("#signin-error")).not_to_be_empty()
    fill_in(tab, mina.email, PASSWORD)
    tab.linked()
    token = json.loads(tab.evaluate("localStorage.getItem('pabal.chat.session')"))["accessToken"]
    other = tab.context.new_page()
    other.goto(tab.page.url)
    expect(other.locator("#link-words")).to_have_text("Connected")
    tab.page.click("#account-button")
    tab.page.click("#sign-out")
    tab.page.click("#signout-form .danger")
    expect(tab.page.locator("#signin")).to_be_visible()
    expect(other.locator("#signin")).to_be_visible()  # in other tabs too, and on the server
    assert "accessToken" not in tab.evaluate("JSON.stringify(localStorage)")
    assert httpx2.get(f"{mina.address}/me", headers={"Authorization": f"Bearer {token}"}).status_code == 401


def test_a_token_that_no_longer_holds_leads_back_to_signing_in(open_tab: OpenTab) -> None:
    tab = open_tab()
    forged = {"accessToken": "no.such.token", "expiresAt": "2999-01-01T00:00:00Z", "user": {"id": "x", "email": "x@y"}}
    tab.page.evaluate("session => localStorage.setItem('pabal.chat.session', JSON.stringify(session))", forged)
    tab.page.reload()
    expect(tab.page.locator("#signin-notice")).to_contain_text("session has ended")


def test_two_browsers_talk_and_see_each_other(open_tab: OpenTab, mina: Person, kenji: Person) -> None:
    mina.make_room("Two talk", kenji)
    here, there = open_tab(mina), open_tab(kenji)
    here.enter("Two talk")
    there.enter("Two talk")
    expect(here.page.locator("#presence")).to_have_text("2 members, 2 online")
    there.page.locator("#text").press_sequentially("안녕")
    expect(here.page.locator("#typing")).to_contain_text(f"{kenji.name} is typing")
    there.page.press("#text", "Enter")
    expect(here.message("안녕").locator(".author")).to_have_text(kenji.name)
    expect(here.page.locator("#typing")).to_have_attribute("data-on", "false")
    expect(here.page.locator("#announcer")).to_have_text(f"{kenji.name}: 안녕")
    here.write("こんにちは")
    there.stored("こんにちは")
    assert here.shown() == there.shown() == ["안녕", "こんにちは"]
    there.context.close()
    expect(here.page.locator("#presence")).to_have_text("2 members, 1 online")


def test_unread_messages_are_counted_until_they_are_seen(open_tab: OpenTab, mina: Person, kenji: Person) -> None:
    room = mina.make_room("Counting", kenji)
    mina.make_room("Elsewhere")
    here, there = open_tab(mina), open_tab(kenji)
    here.enter("Elsewhere")
    there.enter("Counting")
    for number in range(3):
        there.write(f"unread {number}")
    badge = here.row("Counting").locator(".badge")
    expect(badge).to_have_text("4")  # and that somebody joined
    expect(here.page).to_have_title(re.compile(r"\([0-9]+\) Pabal chat"))
    expect(here.row("Counting")).to_contain_text("unread 2")
    here.enter("Counting")
    expect(badge).to_be_hidden()
    expect(here.page.locator(".fresh")).to_be_visible()
    until(lambda: mina.get("/rooms")["rooms"][0]["unread"] == 0)
    assert mina.get("/rooms")["rooms"][0]["id"] == room
    here.page.reload()
    expect(here.row("Counting")).to_be_visible()
    expect(here.row("Counting").locator(".badge")).to_be_hidden()


def test_an_invitation_leads_into_a_room_that_one_can_leave(open_tab: OpenTab, mina: Person, kenji: Person) -> None:
    mina.make_room("By invitation")
    here, there = open_tab(mina), open_tab(kenji)
    here.enter("By invitation")
    here.page.click("#room-menu-button")
    here.page.click("#invite-button")
    expect(here.page.locator("#invite-link")).to_have_value(re.compile("#join="))
    link = here.page.input_value("#invite-link")
    expect(here.page.locator("#invitations li")).to_have_count(1)
    there.page.goto(link)
    expect(there.page.locator("#join-words")).to_have_text(f"{mina.name} invites you to By invitation.")
    there.page.click("#join-form .primary")
    expect(there.page.locator("#room-title")).to_have_text("By invitation")
    assert "join" not in there.page.url
    expect(there.page.locator(".notice")).to_have_text(f"{kenji.name} joined the room")
    expect(here.page.locator(".notice")).to_have_text(f"{kenji.name} joined the room")
    here.page.keyboard.press("Escape")
    here.page.click("#members-button")
    expect(here.page.locator("#members .member")).to_have_count(2)
    there.page.click("#room-menu-button")
    there.page.click("#leave-button")
    there.page.click("#leave-form .danger")
    expect(there.row("By invitation")).to_have_count(0)
    expect(there.page.locator("#nothing")).to_be_visible()
    expect(here.page.locator("#members .member")).to_have_count(1)


def test_what_is_no_invitation_is_told(open_tab: OpenTab, mina: Person) -> None:
    tab = open_tab(mina)
    for words, said in (("hello", "not an invitation"), (f"#join={uuid.uuid4()}", "no such room")):
        tab.page.click("#join-room")
        tab.page.fill("#join-link", words)
        tab.page.click("#join-form .primary")
        expect(tab.page.locator("#join-error")).to_contain_text(said)
        tab.page.keyboard.press("Escape")


def test_history_comes_by_scrolling_up_and_nothing_jumps(open_tab: OpenTab, mina: Person) -> None:
    mina.make_room("Long history")
    tab = open_tab(mina)
    tab.enter("Long history")
    for number in range(170):
        tab.write(f"note {number:03}")
    tab.stored("note 169")
    tab.page.reload()
    tab.enter("Long history")
    assert tab.shown()[0] == "note 120"
    assert tab.shown()[-1] == "note 169"
    scroller = tab.page.locator("#scroller")
    top = """text => [...document.querySelectorAll(".bubble")]
      .find(bubble => bubble.textContent === text).getBoundingClientRect().top"""
    scroller.evaluate("element => { element.scrollTop = 300 }")
    place = tab.page.evaluate(top, "note 125")
    expect(tab.message("note 070")).to_have_count(1)
    assert abs(tab.page.evaluate(top, "note 125") - place) < 2
    until(lambda: scroller.evaluate("element => { element.scrollTop = 0 }") or tab.shown()[0] == "note 000")
    assert tab.shown() == [f"note {number:03}" for number in range(170)]
    expect(tab.page.locator("#older")).to_be_hidden()
    tab.page.click("#to-end")
    expect(tab.message("note 169")).to_be_in_viewport()


def test_images_are_sent_by_choosing_pasting_and_shown_small_and_whole(
    open_tab: OpenTab, mina: Person, kenji: Person
) -> None:
    mina.make_room("Pictures", kenji)
    here, there = open_tab(mina), open_tab(kenji)
    here.enter("Pictures")
    there.enter("Pictures")
    file = {"name": "a.png", "mimeType": "image/png", "buffer": picture()}
    here.page.set_input_files("#file", file)  # type: ignore[arg-type]  # a FilePayload
    shown = there.page.locator(".picture img")
    expect(shown).to_have_count(1)
    expect(shown).to_have_js_property("naturalWidth", 64)
    expect(shown).to_have_attribute("src", re.compile("^blob:"))
    here.page.evaluate(PASTE, list(picture(400, 300)))
    expect(shown).to_have_count(2)
    expect(shown.nth(1)).to_have_js_property("naturalWidth", 320)
    there.page.locator(".picture").nth(1).click()
    whole = there.page.locator("#viewer-image")
    expect(whole).to_have_js_property("naturalWidth", 400)
    there.page.keyboard.press("Escape")
    expect(there.page.locator("#viewer")).to_be_hidden()
    expect(here.page.locator(".upload")).to_have_count(0)


PASTE = """bytes => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], "pasted.png", {type: "image/png"}));
  document.getElementById("text").dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, cancelable: true}));
}"""


def test_what_is_no_image_is_refused_at_once_and_by_the_gateway(open_tab: OpenTab, mina: Person) -> None:
    mina.make_room("No pictures")
    tab = open_tab(mina)
    tab.enter("No pictures")
    text = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"text"}
    tab.page.set_input_files("#file", text)  # type: ignore[arg-type]  # a FilePayload
    expect(tab.page.locator("#toast")).to_contain_text("Only PNG")
    forged = {"name": "a.png", "mimeType": "image/png", "buffer": b"no picture"}
    tab.page.set_input_files("#file", forged)  # type: ignore[arg-type]  # a FilePayload
    expect(tab.page.locator(".upload-words")).to_contain_text("no image/png")
    tab.page.click(".upload .icon-button")
    expect(tab.page.locator(".upload")).to_have_count(0)


def test_enter_while_an_input_method_composes_never_sends(open_tab: OpenTab, mina: Person) -> None:
    room = mina.make_room("Composing")
    tab = open_tab(mina)
    tab.enter("Composing")
    tab.page.focus("#text")
    ime = tab.context.new_cdp_session(tab.page)
    for composed in ("ㅎ", "하", "한"):
        ime.send("Input.imeSetComposition", {"text": composed, "selectionStart": 1, "selectionEnd": 1})
    tab.page.keyboard.press("Enter")
    for composed in ("か", "かん", "漢"):
        ime.send("Input.imeSetComposition", {"text": composed, "selectionStart": 1, "selectionEnd": 1})
    ime.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", "key": "Enter", "windowsVirtualKeyCode": 229})
    ime.send("Input.insertText", {"text": "漢字"})
    assert tab.page.locator(".message").count() == 0
    expect(tab.page.locator("#text")).to_have_value(re.compile(r"漢字\s*$"))  # no input method takes the key
    written = tab.page.input_value("#text").strip()
    tab.page.press("#text", "Enter")
    tab.stored(written)
    assert mina.texts(room) == [written]


@pytest.mark.parametrize("event", ["isComposing: true", "keyCode: 229"])
def test_each_sign_of_a_composition_alone_keeps_enter_from_sending(open_tab: OpenTab, mina: Person, event: str) -> None:
    mina.make_room(f"Sign {event}")
    tab = open_tab(mina)
    tab.enter(f"Sign {event}")
    tab.page.fill("#text", "조합")
    for key, sent in ((event, 0), ("keyCode: 13", 1)):
        tab.evaluate(
            f"document.getElementById('text').dispatchEvent(new KeyboardEvent('keydown', {{key: 'Enter', {key}}}))"
        )
        time.sleep(0.2)  # nothing to wait for: a message must not appear
        assert tab.page.locator(".message").count() == sent


def test_shift_and_enter_break_the_line(open_tab: OpenTab, mina: Person) -> None:
    room = mina.make_room("Lines")
    tab = open_tab(mina)
    tab.enter("Lines")
    tab.page.fill("#text", "one")
    tab.page.press("#text", "Shift+Enter")
    tab.page.locator("#text").press_sequentially("two")
    tab.page.press("#text", "Enter")
    tab.stored("one")
    assert mina.texts(room) == ["one\ntwo"]


def test_nothing_that_people_write_is_taken_as_markup(open_tab: OpenTab, mina: Person) -> None:
    bad = "<img src=x onerror='window.caught = 1'><b>bold</b>"
    room = mina.make_room(bad[:100])
    tab = open_tab(mina)
    tab.row("onerror").click()
    tab.write(f"{bad} https://example.org/?a=1&b=<script>")
    tab.stored("bold")
    assert mina.texts(room) == tab.shown()
    assert tab.page.locator("#messages img, #messages b, #rooms img").count() == 0
    assert tab.page.locator(".bubble a").get_attribute("href") == "https://example.org/?a=1&b="
    assert tab.evaluate("window.caught") is None


def test_a_text_that_is_too_long_is_kept_and_told(open_tab: OpenTab, mina: Person) -> None:
    mina.make_room("Too long")
    tab = open_tab(mina)
    tab.enter("Too long")
    tab.write("가" * 5001)
    expect(tab.page.locator("#toast")).to_contain_text("5000 characters at most")
    expect(tab.page.locator("#count")).to_have_text("5001 of 5000")
    tab.write("😀" * 5000)
    tab.stored("😀")
