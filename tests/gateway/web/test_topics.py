"""Topics in the dashboard, in Chromium: what an operator sees and does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from socket import socket

import pytest
from playwright.sync_api import Browser, expect

import pabal
from pabal.connect import TopicConnection, connect_topics
from pabal.topics.attempts import Received
from pabal.topics.consumer import consumer
from pabal.topics.topic import Topic
from tests.gateway.conftest import gateway
from tests.gateway.web.conftest import OpenPage
from tests.services.browser import CONTRAST, NAMELESS, shoot

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@pytest.fixture
def topics(url: str) -> Iterator[TopicConnection]:
    with connect_topics(url) as found:
        yield found


@pytest.fixture
def orders(topics: TopicConnection) -> Topic:
    topic = topics.topic("orders.v1")
    topic.create(2)
    return topic


def refuse(received: Received) -> None:
    raise ValueError("가격이 없습니다")


def let_die(topic: Topic, count: int) -> None:
    consumer(topic, "billing", refuse, retry=pabal.RetryPolicy(limit=1)).run(count=count, wait=30.0)


def test_a_topic_its_groups_and_partitions_are_shown_and_live(
    topics: TopicConnection, orders: Topic, open_page: OpenPage
) -> None:
    for number in range(5):
        orders.append({"number": number}, partition=number % 2)
    member = topics.driver.join(orders.name, "archive", session=600.0)
    member.read(10, 5.0)
    page = open_page()
    page.get_by_role("link", name="Topics").click()
    row = page.get_by_role("row", name=re.compile("orders.v1"))
    expect(row).to_contain_text("5")
    orders.append({"number": 5}, partition=0)
    expect(row).to_contain_text("6")
    page.get_by_role("link", name="orders.v1").click()
    page.get_by_role("link", name=re.compile("Groups")).click()
    expect(page.locator("details.group")).to_contain_text("archive is 6 behind, 1 member")
    expect(page.locator("details.group")).to_contain_text(member.name)
    member.commit({0: 3, 1: 2})
    expect(page.locator("details.group")).to_contain_text("archive is 1 behind")
    page.get_by_role("link", name=re.compile("Partitions")).click()
    expect(page.get_by_role("row", name="1 0 2 2")).to_be_visible()
    member.close()


def test_records_are_read_from_an_offset_a_time_and_the_end(orders: Topic, open_page: OpenPage) -> None:
    for number in range(120):
        orders.append({"number": number, "text": "玄関前に 배송"}, key=f"고객-{number}", partition=1)
    page = open_page("#/topics/orders.v1")
    rows = page.locator("table.messages tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("고객-119")
    page.get_by_role("button", name="Older").click()
    expect(rows.first).to_contain_text("고객-69")
    page.get_by_role("button", name="Older").click()
    expect(rows).to_have_count(20)
    expect(page.get_by_role("button", name="Older")).to_be_hidden()
    page.get_by_role("button", name="Newer").click()
    expect(rows.first).to_contain_text("고객-69")
    expect(page.get_by_label("Partition").locator("option")).to_have_count(3)
    page.get_by_label("Partition").select_option("1")
    page.get_by_label("From this offset on").fill("118")
    page.get_by_role("button", name="Show from here").click()
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("1/119")
    page.get_by_label("From this offset on").fill("")
    page.get_by_label("From this time on").fill("2020-01-01T00:00:00")
    page.get_by_role("button", name="Show from here").click()
    expect(rows.last).to_contain_text("1/0")
    page.locator("td.id a").last.click()
    expect(page.locator(".json")).to_contain_text("玄関前に 배송")
    page.get_by_role("link", name="the next one").click()
    expect(page.locator("h1")).to_contain_text("1/1")


def test_hostile_records_are_shown_as_text(orders: Topic, open_page: OpenPage) -> None:
    orders.append({"html": HOSTILE, "bidi": "abc\u202edef"}, key=HOSTILE, headers={HOSTILE: HOSTILE}, partition=0)
    orders.append(b"\x00\x01\xffbytes", partition=0)
    orders.append("x" * 900_000, partition=0)
    page = open_page("#/topics/orders.v1")
    expect(page.locator("table.messages tbody tr")).to_have_count(3)
    for offset, words in ((0, "abc\\u202edef"), (1, "00 01 ff"), (2, "xxxx")):
        page.goto(f"{page.url.partition('#')[0]}#/topics/orders.v1/record/0/{offset}")
        expect(page.locator("section")).to_contain_text(words)
    assert "owned" not in page.title() and page.locator("section img, section script").count() == 0


def test_dead_records_are_counted_asked_for_and_replayed(orders: Topic, open_page: OpenPage) -> None:
    for number in range(7):
        orders.append({"number": number}, partition=number % 2)
    let_die(orders, 7)
    page = open_page("#/topics")
    expect(page.get_by_role("row", name=re.compile("orders.v1"))).to_contain_text("7 dead")
    expect(page.locator("tbody tr")).to_have_count(1)  # that of dead records is part of it
    page.get_by_role("link", name="7", exact=True).last.click()
    expect(page.locator(".why").first).to_contain_text("HANDLER_ERROR: ValueError: 가격이 없습니다")
    expect(page.locator("tbody tr").first).to_contain_text("for billing after 1 attempt")
    page.get_by_role("button", name="Replay all").click()
    expect(page.get_by_role("dialog")).to_contain_text("7 dead records")
    page.get_by_role("button", name="Cancel").click()
    assert sum(bounds.next for bounds in orders.bounds()) == 7
    page.get_by_role("button", name="Replay all").click()
    page.get_by_role("button", name="Replay 7").click()
    expect(page.locator(".toast")).to_have_text("7 replayed")
    expect(page.get_by_text("No dead records")).to_be_visible()
    assert sum(bounds.next for bounds in orders.bounds()) == 14


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_the_pages_of_topics_are_readable_and_fit(orders: Topic, open_page: OpenPage, width: int, scheme: str) -> None:
    orders.append({"text": "x" * 300}, key="k" * 60, headers={"long": "y" * 200}, partition=0)
    let_die(orders, 1)
    page = open_page("#/topics", viewport={"width": width, "height": 700}, color_scheme=scheme)
    for path, ready in (
        ("topics", "table tbody tr"),
        ("topics/orders.v1/records", "table.messages tbody tr"),
        ("topics/orders.v1/groups", "details.group"),
        ("topics/orders.v1/partitions", "table tbody tr"),
        ("topics/orders.v1/dead", ".why"),
        ("topics/orders.v1/record/0/0", ".json"),
        ("topics/nowhere/records", ".soft"),
    ):
        page.goto(f"{page.url.partition('#')[0]}#/{path}")
        expect(page.locator(ready).first).to_be_visible()
        ratio, words = page.evaluate(CONTRAST)
        assert ratio >= 4.5, (path, words)
        assert page.evaluate(NAMELESS) == []
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


def test_a_picture_of_a_topic(orders: Topic, open_page: OpenPage, tmp_path: Path) -> None:
    names = ["ann", "김민아", "健司", "ben"]
    notes = ["by the door", "문 앞에 두세요", "玄関前に置いてください", ""]
    for number in range(12):
        body = {"order": 1000 + number, "name": names[number % 4], "note": notes[number % 4]}
        orders.append(body, key=f"customer-{number % 5}", headers={"tenant": "blue"}, partition=number % 2)
    let_die(orders, 3)
    page = open_page("#/topics/orders.v1", viewport={"width": 1280, "height": 560})
    expect(page.locator("table.messages tbody tr")).to_have_count(12)
    expect(page.locator("nav.tabs .dead")).to_contain_text("3")
    expect(page.locator("#live-text")).to_have_text("live")
    shoot(page, "dashboard-topic", tmp_path)


def test_topics_that_do_not_answer_are_said_to_be_silent(
    browser: Browser, emails: pabal.Queue, url: str, tmp_path: Path
) -> None:
    with socket() as nobody:  # takes connections, and never answers
        nobody.bind(("127.0.0.1", 0))
        nobody.listen()
        place = f"kafka://127.0.0.1:{nobody.getsockname()[1]}"
        with gateway(url, tmp_path / "log", "--topics", place) as running:
            context = browser.new_context(viewport={"width": 1280, "height": 560})
            page = context.new_page()
            page.goto(running.dashboard)
            expect(page.get_by_role("row", name=re.compile("emails"))).to_be_visible()
            page.goto(f"{running.address}/#/topics")
            expect(page.get_by_role("alert").filter(has_text="do not answer")).to_be_visible()
            page.goto(f"{running.address}/#/")
            expect(page.get_by_role("row", name=re.compile("emails"))).to_be_visible()  # queues are not held up
            context.close()
