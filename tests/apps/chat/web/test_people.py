"""What people need of the page beyond talking: where reading begins, Back, drafts, devices, search, languages."""

import json
import re
from pathlib import Path

from playwright.sync_api import Route, expect

from tests.apps.chat.running import Person
from tests.apps.chat.web.conftest import OpenTab
from tests.apps.chat.web.test_page import picture
from tests.waiting import until


def test_reading_begins_at_the_first_unread_message_and_leads_to_the_end(
    open_tab: OpenTab, mina: Person, kenji: Person
) -> None:
    room = mina.make_room("Much unread", kenji)
    mina.post(f"/rooms/{room}/read", {"lastReadMessageId": mina.messages(room)[-1]["id"]})
    here, there = open_tab(mina), open_tab(kenji)
    there.enter("Much unread")
    there.page.evaluate(
        """async (room) => {
          const text = document.getElementById("text");
          for (let number = 0; number < 180; number++) {
            text.value = `line ${String(number).padStart(3, "0")}`;
            document.getElementById("composer").requestSubmit();
          }
        }""",
        room,
    )
    there.stored("line 179")
    expect(here.row("Much unread").locator(".badge")).to_have_text("99+")
    here.enter("Much unread")
    expect(here.page.locator(".fresh")).to_be_in_viewport()
    expect(here.message("line 000")).to_be_in_viewport()
    expect(here.message("line 179")).to_have_count(0)
    expect(here.page.locator("#to-end")).to_be_visible()
    here.page.click("#to-end")
    expect(here.message("line 179")).to_be_in_viewport()
    until(lambda: next(view["unread"] for view in mina.get("/rooms")["rooms"] if view["id"] == room) == 0)
    here.page.click("#search-button")
    here.page.fill("#search-text", "line 042")
    here.page.locator(".result", has_text="line 042").click()
    expect(here.page.locator("[data-found]")).to_have_text(re.compile("line 042"))
    expect(here.page.locator("[data-found]")).to_be_in_viewport()
    there.write("live and far below")
    there.stored("live and far below")
    expect(here.message("live and far below")).to_have_count(0)  # the window does not reach it
    here.page.click("#to-end")
    expect(here.message("live and far below")).to_be_in_viewport()


def test_a_jump_that_the_server_does_not_answer_leaves_the_reader_where_he_was(
    open_tab: OpenTab, mina: Person, kenji: Person
) -> None:
    room = mina.make_room("Unanswered", kenji)
    mina.post(f"/rooms/{room}/read", {"lastReadMessageId": mina.messages(room)[-1]["id"]})
    here, there = open_tab(mina), open_tab(kenji)
    there.enter("Unanswered")
    for number in range(70):
        there.write(f"line {number:03}")
    there.stored("line 069")
    here.enter("Unanswered")
    expect(here.message("line 000")).to_be_in_viewport()
    here.page.click("#search-button")
    here.page.fill("#search-text", "line 069")
    expect(here.page.locator(".result", has_text="line 069")).to_be_visible()
    busy = {"error": {"code": "Unavailable", "message": "not possible at the moment: try again later"}}
    here.page.route("**/messages?*", lambda route: route.fulfill(status=503, json=busy))
    for place in (here.page.locator("#to-end"), here.page.locator(".result", has_text="line 069")):
        with here.page.expect_response("**/messages?*"):
            place.click()
        expect(here.message("line 001")).to_be_attached()
        expect(here.page.locator("#loading")).to_be_hidden()
    here.page.unroute("**/messages?*")
    here.context.set_offline(True)
    expect(here.page.locator("#link-words")).to_have_text("Connecting")
    here.write("written meanwhile")
    expect(here.message("written meanwhile")).to_be_in_viewport()
    expect(here.message("line 001")).to_be_attached()
    here.context.set_offline(False)
    here.stored("written meanwhile")  # at its place, after all that came before it
    expect(here.message("line 069")).to_be_attached()


def test_back_a_reload_and_drafts_lead_where_one_was(open_tab: OpenTab, mina: Person) -> None:
    for name in ("Back one", "Back two"):
        mina.make_room(name)
    tab = open_tab(mina, viewport={"width": 390, "height": 780})
    tab.enter("Back one")
    tab.page.fill("#text", "half a thought")
    tab.page.go_back()
    expect(tab.row("Back one")).to_be_visible()
    tab.enter("Back two")
    expect(tab.page.locator("#text")).to_have_value("")
    tab.page.click("#back")
    tab.enter("Back one")
    expect(tab.page.locator("#text")).to_have_value("half a thought")
    tab.page.reload()
    expect(tab.page.locator("#room-title")).to_have_text("Back one")
    expect(tab.page.locator("#text")).to_have_value("half a thought")
    tab.page.press("#text", "Enter")
    tab.stored("half a thought")
    assert tab.evaluate("Object.keys(localStorage).filter(key => key.includes('draft'))") == []


def test_the_devices_of_one_user_agree(open_tab: OpenTab, mina: Person, kenji: Person) -> None:
    room = mina.make_room("On all devices", kenji)
    one, two, other = open_tab(mina), open_tab(mina), open_tab(kenji)
    other.enter("On all devices")
    other.write("read me")
    expect(two.row("On all devices").locator(".badge")).to_be_visible()
    one.enter("On all devices")
    expect(two.row("On all devices").locator(".badge")).to_be_hidden()
    one.page.click("#room-menu-button")
    one.page.click("#rename-button")
    one.page.fill("#rename-name", "By another name")
    one.page.click("#rename-form .primary")
    expect(other.page.locator("#room-title")).to_have_text("By another name")
    expect(two.row("By another name")).to_be_visible()
    one.page.click("#members-button")
    one.page.locator(f"[data-user='{kenji.id}'] .icon-button").click()
    one.page.click("#remove-form .danger")
    expect(other.row("By another name")).to_have_count(0)
    expect(one.page.locator(".notice").last).to_have_text(f"{kenji.name} was removed from the room")
    mina.post(f"/rooms/{room}/leave")
    expect(two.row("By another name")).to_have_count(0)
    expect(one.page.locator("#nothing")).to_be_visible()


def test_who_was_removed_needs_a_new_invitation_of_the_owner(open_tab: OpenTab, mina: Person, kenji: Person) -> None:
    mina.make_room("Shown the door", kenji)
    here, there = open_tab(mina), open_tab(kenji)
    here.enter("Shown the door")

    def invite() -> str:
        here.page.click("#room-menu-button")
        here.page.click("#invite-button")
        expect(here.page.locator("#invite-link")).to_have_value(re.compile("#join="))
        link = here.page.input_value("#invite-link")
        here.page.keyboard.press("Escape")
        return link

    old = invite()
    assert invite() == old  # each would be a way into the room
    here.page.click("#members-button")
    here.page.locator(f"[data-user='{kenji.id}'] .icon-button").click()
    here.page.click("#remove-form .danger")
    expect(there.row("Shown the door")).to_have_count(0)
    there.page.click("#join-room")
    there.page.fill("#join-link", old)
    there.page.click("#join-form .primary")
    expect(there.page.locator("#join-error")).to_contain_text("only a new invitation of the owner lets you in")
    there.page.fill("#join-link", invite())
    there.page.click("#join-form .primary")
    expect(there.page.locator("#room-title")).to_have_text("Shown the door")


def test_a_hidden_tab_counts_what_came_in_the_open_room(open_tab: OpenTab, mina: Person, kenji: Person) -> None:
    mina.make_room("Hidden", kenji)
    here, there = open_tab(mina, permissions=["notifications"]), open_tab(kenji)
    here.enter("Hidden")
    there.enter("Hidden")
    hide = """hidden => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    here.page.evaluate(
        "globalThis.Notification = class { static permission = 'granted'; static told = [];"
        " constructor(title, { body }) { Notification.told.push(`${title}: ${body}`); } };"
        "localStorage.setItem('pabal.chat.notify', 'yes')"
    )
    before = here.page.title()
    here.page.evaluate(hide, True)
    there.write("are you there?")
    there.stored("are you there?")
    expect(here.page).to_have_title(re.compile(r"^\([0-9]+\) "))
    here.until(lambda: here.evaluate("Notification.told") == [f"Hidden: {kenji.name}: are you there?"])
    here.page.evaluate(hide, False)
    expect(here.page).to_have_title(before)


def test_half_a_character_and_links_with_brackets(open_tab: OpenTab, mina: Person) -> None:
    room = mina.make_room("Odd text")
    tab = open_tab(mina)
    tab.enter("Odd text")
    tab.page.evaluate("document.getElementById('text').value = 'x\\ud83dy'")
    tab.page.press("#text", "Enter")
    tab.write("see (https://example.org/a_(b)), or https://example.org/c.")
    tab.stored("see")
    assert mina.texts(room)[0] == "x\ufffdy"
    found = tab.page.locator(".bubble a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    assert found == ["https://example.org/a_(b)", "https://example.org/c"]


def test_a_message_that_ends_the_connection_holds_up_no_other(open_tab: OpenTab, mina: Person) -> None:
    room = mina.make_room("Set aside")
    tab = open_tab(mina)
    bad = {"clientMsgId": "11111111-1111-4111-8111-111111111111", "roomId": room, "type": "TEXT", "at": 1, "order": 1}
    stored = json.dumps({**bad, "content": "x" * 70_000, "state": "sending", "reason": "", "cuts": 0})  # too large
    tab.page.evaluate(f"localStorage.setItem('pabal.chat.unsent.{mina.id}.{bad['clientMsgId']}', {json.dumps(stored)})")
    tab.page.reload()
    tab.linked()
    tab.enter("Set aside")
    tab.write("after it")
    expect(tab.page.locator("[data-state=rejected]")).to_have_count(1, timeout=60_000)
    tab.stored("after it")
    tab.page.locator("[data-state=rejected]").get_by_text("Discard").click()
    expect(tab.page.locator("[data-state=rejected]")).to_have_count(0)


def test_what_cannot_be_loaded_says_so_and_images_wait_for_the_connection(open_tab: OpenTab, mina: Person) -> None:
    room = mina.make_room("Honest")
    tab = open_tab(mina)
    down = [True]

    def answer(route: Route) -> None:
        body = json.dumps({"error": {"code": "Unavailable", "message": "not possible at the moment"}})
        route.fulfill(status=503, content_type="application/json", body=body) if down[0] else route.continue_()

    tab.page.route("**/rooms?*", answer)
    tab.page.reload()
    expect(tab.page.locator("#nothing-words")).to_have_text("Cannot load your rooms now.")
    down[0] = False
    tab.enter("Honest")
    tab.context.set_offline(True)
    view = {"name": "view.png", "mimeType": "image/png", "buffer": picture()}
    tab.page.set_input_files("#file", view)  # type: ignore[arg-type]  # a FilePayload
    expect(tab.page.locator(".upload-words")).to_have_text("Waits for the connection")
    tab.context.set_offline(False)
    until(lambda: [message["type"] for message in mina.messages(room)] == ["IMAGE"])
    expect(tab.page.locator(".picture img")).to_have_count(1)


def test_the_page_speaks_korean_and_japanese_and_has_a_theme(open_tab: OpenTab, mina: Person, tmp_path: Path) -> None:
    mina.make_room("Languages")
    for locale, words in (("ko-KR", "연결됨"), ("ja-JP", "接続済み")):
        tab = open_tab(locale=locale)
        tab.page.evaluate(
            "session => localStorage.setItem('pabal.chat.session', JSON.stringify(session))", mina.session
        )
        tab.page.reload()
        expect(tab.page.locator("#link-words")).to_have_text(words)
        tab.enter("Languages")
        missing = "[...document.querySelectorAll('[data-t]')].filter(found => found.textContent === 'undefined').length"
        assert tab.evaluate(missing) == 0 and tab.evaluate("document.documentElement.lang") == locale[:2]
        tab.page.screenshot(path=str(tmp_path / f"{locale}.png"))
    tab.page.click("#account-button")
    tab.page.click("#theme-dark")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 26)"
    tab.page.reload()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 26)"
    small = """() => [...document.querySelectorAll("button, input:not([type=checkbox])")]
      .filter((found) => found.checkVisibility() && !found.closest(".themes, .aside"))
      .filter((found) => Math.min(found.offsetWidth, found.offsetHeight) < 44).map((found) => found.id)"""
    assert tab.evaluate(small) == []


def test_the_same_words_in_every_language() -> None:
    import pabal.apps.chat

    source = (Path(pabal.apps.chat.__file__).parent / "web" / "text.js").read_text()
    tables = re.findall(r"^const (en|ko|ja) = \{\n(.*?)^\};", source, re.M | re.S)
    keys = {name: set(re.findall(r"^  (\w+):", body, re.M)) for name, body in tables}
    assert keys["en"] == keys["ko"] == keys["ja"] and len(keys["en"]) > 100


def test_a_tab_begins_anew_when_another_one_signs_in_as_somebody_else(
    open_tab: OpenTab, mina: Person, kenji: Person
) -> None:
    def sign_in(person: Person) -> str:
        return f"localStorage.setItem('pabal.chat.session', JSON.stringify({json.dumps(person.session)}))"

    tab = open_tab()
    tab.evaluate(sign_in(mina))
    tab.page.reload()
    tab.linked()
    other = tab.context.new_page()
    other.goto(mina.address)
    with tab.page.expect_event("load"):
        other.evaluate(sign_in(kenji))
    tab.linked()
    other.close()
