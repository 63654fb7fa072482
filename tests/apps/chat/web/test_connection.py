"""What the page does when the connection fails: nothing that was written is lost, doubled or out of order."""

import json
import re
from collections.abc import Callable

from playwright.sync_api import Route, WebSocketRoute, expect

from tests.apps.chat.running import Person, Up
from tests.apps.chat.web.conftest import OpenTab
from tests.apps.chat.web.tab import Tab
from tests.waiting import until

SOCKET = re.compile("/socket.io/")


def numbered(word: str, count: int) -> list[str]:
    return [f"{word} {number:02}" for number in range(count)]


def relay(tab: Tab, to_server: Callable[[str], bool], to_page: Callable[[str], int]) -> None:
    """Stand between the page and the gateway: say what goes through, and how often; reload to begin."""

    def between(page_side: WebSocketRoute) -> None:
        server_side = page_side.connect_to_server()

        def from_page(frame: str | bytes) -> None:
            if to_server(str(frame)):
                server_side.send(frame)

        def from_server(frame: str | bytes) -> None:
            for _ in range(to_page(str(frame))):
                page_side.send(frame)

        page_side.on_message(from_page)
        server_side.on_message(from_server)

    tab.page.route_web_socket(SOCKET, between)
    tab.page.reload()
    tab.linked()


def test_what_is_written_without_a_connection_is_sent_once_and_in_order_when_it_is_back(
    open_tab: OpenTab, mina: Person, kenji: Person
) -> None:
    room = mina.make_room("Offline", kenji)
    here, there = open_tab(mina), open_tab(kenji)
    here.enter("Offline")
    there.enter("Offline")
    here.context.set_offline(True)
    expect(here.page.locator("#offline")).to_be_visible()
    for text in numbered("kept", 5):
        here.write(text)
    expect(here.page.locator("[data-state=sending]")).to_have_count(5)
    here.context.set_offline(False)
    here.stored("kept 04")
    expect(here.page.locator("#offline")).to_be_hidden()
    expect(there.message("kept 04")).to_have_count(1)
    assert here.shown() == there.shown() == mina.texts(room) == numbered("kept", 5)
    assert here.evaluate("Object.keys(localStorage).filter(key => key.includes('unsent'))") == []


def test_what_was_not_sent_when_the_page_closed_is_sent_when_it_opens(open_tab: OpenTab, mina: Person) -> None:
    room = mina.make_room("Closed page")
    tab = open_tab(mina)
    tab.enter("Closed page")
    tab.context.set_offline(True)
    tab.write("written before the page closed")
    expect(tab.page.locator("[data-state=sending]")).to_have_count(1)
    tab.page.close()
    tab.context.set_offline(False)
    again = tab.context.new_page()
    again.goto(mina.address)
    until(lambda: mina.texts(room) == ["written before the page closed"])
    again.locator("#rooms button", has_text="Closed page").click()
    expect(again.locator(".message[data-state=stored]")).to_have_count(1)


def test_a_message_whose_answer_was_lost_is_sent_again_and_stored_once(open_tab: OpenTab, mina: Person) -> None:
    room = mina.make_room("Lost answers")
    tab = open_tab(mina)
    sent: list[str] = []
    lost: list[str] = []

    def to_server(frame: str) -> bool:
        if "sendMessage" in frame:
            sent.append(json.loads(frame[frame.index("[") :])[1]["clientMsgId"])
        return True

    def to_page(frame: str) -> int:
        told = (
            re.match("43[0-9]", frame) and "ACCEPTED" in frame or "newMessage" in frame or "messagePersisted" in frame
        )
        if told and len(sent) < 2:  # neither the answer nor the message comes through the first time
            lost.append(frame)
            return 0
        return 1

    def read_later(route: Route) -> None:
        route.continue_() if len(sent) == 2 else route.abort()

    tab.page.route("**/messages?after=*", read_later)
    relay(tab, to_server, to_page)
    tab.enter("Lost answers")
    tab.write("is it there?")
    tab.until(lambda: len(lost) >= 2)
    expect(tab.message("is it there?")).to_have_attribute("data-state", "sending")
    tab.context.set_offline(True)
    tab.context.set_offline(False)
    tab.stored("is it there?")
    assert len(sent) == 2 and len(set(sent)) == 1
    assert tab.shown() == mina.texts(room) == ["is it there?"]


def test_a_message_that_comes_twice_is_shown_once(open_tab: OpenTab, mina: Person, kenji: Person) -> None:
    mina.make_room("Twice", kenji)
    here, there = open_tab(mina), open_tab(kenji)
    relay(here, lambda frame: True, lambda frame: 2 if "newMessage" in frame else 1)
    here.enter("Twice")
    there.enter("Twice")
    for text in numbered("double", 5):
        there.write(text)
    expect(here.message("double 04")).to_have_count(1)
    here.write("mine")
    here.stored("mine")
    assert here.shown() == [*numbered("double", 5), "mine"]
    assert here.row("Twice").locator(".badge").is_hidden()


def test_after_a_reconnect_exactly_what_was_missed_comes(open_tab: OpenTab, mina: Person, kenji: Person) -> None:
    mina.make_room("Missed", kenji)
    here, there = open_tab(mina), open_tab(kenji)
    joins: list[int] = []

    def to_server(frame: str) -> bool:
        if "joinRoom" in frame:
            joins.append(json.loads(frame[frame.index("[") :])[1]["lastSequence"])
        return True

    relay(here, to_server, lambda frame: 1)
    here.enter("Missed")
    there.enter("Missed")
    there.write("before")
    expect(here.message("before")).to_have_count(1)
    joins.clear()
    here.context.set_offline(True)
    for text in numbered("missed", 60):
        there.write(text)
    there.stored("missed 59")
    here.context.set_offline(False)
    expect(here.message("missed 59")).to_have_count(1)
    there.write("after")
    expect(here.message("after")).to_have_count(1)
    assert here.shown() == ["before", *numbered("missed", 60), "after"]
    assert 2 in joins  # who joined, and what was written before


def test_a_gateway_and_a_worker_that_are_killed_lose_nothing(
    open_tab: OpenTab, up: Up, mina: Person, kenji: Person
) -> None:
    room = mina.make_room("Killed", kenji)
    here, there = open_tab(mina), open_tab(kenji)
    here.enter("Killed")
    there.enter("Killed")
    for number, text in enumerate(numbered("sturdy", 30)):
        here.write(text)
        if number == 10:
            up.kill("gateway")
        if number == 20:
            up.kill("worker")
    here.stored("sturdy 29")
    expect(there.message("sturdy 29")).to_have_count(1, timeout=20_000)
    assert here.shown() == there.shown() == mina.texts(room) == numbered("sturdy", 30)


def test_a_message_that_is_refused_says_why_and_can_be_sent_again(open_tab: OpenTab, mina: Person) -> None:
    room = mina.post("/rooms", {"name": "Refused", "open": True})["id"]
    tab = open_tab(mina)
    relay(tab, lambda frame: True, lambda frame: 0 if "membership" in frame else 1)  # it does not hear that she left
    tab.enter("Refused")
    mina.post(f"/rooms/{room}/leave")
    tab.write("let me in")
    tab.write("and this not")
    refused, other = tab.message("let me in"), tab.message("and this not")
    expect(refused).to_have_attribute("data-state", "rejected")
    expect(refused).to_contain_text("no member of this room")
    expect(other).to_have_attribute("data-state", "rejected")
    mina.post(f"/rooms/{room}/join")
    refused.locator("text=Resend").click()
    other.locator("text=Discard").click()
    expect(other).to_have_count(0)
    until(lambda: mina.texts(room) == ["let me in"])
    tab.page.reload()
    tab.enter("Refused")
    assert tab.shown() == ["let me in"]


def test_the_states_of_a_message_are_shown_one_after_the_other(open_tab: OpenTab, mina: Person) -> None:
    mina.make_room("States")
    tab = open_tab(mina)
    held: list[str] = []
    holding = ["ACCEPTED", "newMessage"]

    def to_page(frame: str) -> int:
        if any(word in frame for word in holding) or "messagePersisted" in frame and "newMessage" in holding:
            held.append(frame)
            return 0
        return 1

    relay(tab, lambda frame: True, to_page)
    tab.enter("States")
    tab.write("look at me")
    message = tab.message("look at me")
    expect(message).to_have_attribute("data-state", "sending")
    expect(message.locator(".state")).to_have_text("Sending")
    tab.until(lambda: any("ACCEPTED" in frame for frame in held))  # else it comes through when no longer held
    holding.remove("ACCEPTED")
    tab.context.set_offline(True)
    expect(message.locator(".state")).to_have_text("Waiting for the connection")
    tab.context.set_offline(False)
    expect(message).to_have_attribute("data-state", re.compile("accepted|stored"))
    holding.clear()
    tab.write("and at me")
    expect(tab.message("and at me")).to_have_attribute("data-state", "stored")
    expect(tab.message("and at me").locator(".state")).to_have_text("Stored")
