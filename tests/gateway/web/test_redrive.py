"""Redrive to another queue, attempts and related messages in the dashboard, in Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

import pabal
from pabal.store import State
from tests.gateway.web.conftest import OpenPage
from tests.services.browser import CONTRAST, NAMELESS


@pytest.fixture
def slow(mq: pabal.Connection) -> Iterator[pabal.Queue]:
    queue = mq.queue("emails-slow")
    queue.create()
    yield queue


def let_die(queue: pabal.Queue, count: int, reason: str = "SMTP 421") -> list[str]:
    ids = [each.id for each in queue.publish_many(range(count))]
    for delivery in queue.lease(count):
        delivery.nack(reason=reason)
    return ids


def ready(queue: pabal.Queue) -> int:
    return queue.counts().get(State.READY, 0)


def choose_target(page: Page, rate: str = "") -> None:
    expect(page.get_by_label("To the queue").locator("option")).to_have_count(2)
    page.get_by_label("To the queue").select_option("emails-slow")
    page.get_by_label("Messages a second").fill(rate)


def test_all_that_match_go_to_another_queue(emails: pabal.Queue, slow: pabal.Queue, open_page: OpenPage) -> None:
    matching, others = let_die(emails, 4), let_die(emails, 3, "disk full")
    page = open_page("#/queues/emails/dead?search=smtp")
    expect(page.locator("table.messages tbody tr")).to_have_count(4)
    expect(page.locator("nav.tabs .dead")).to_contain_text("7")  # figures have come, and with them the queues
    page.get_by_role("button", name="Redrive all that match").click()
    expect(page.get_by_role("dialog")).to_contain_text("the 4 dead messages")
    choose_target(page)
    page.get_by_role("button", name="Cancel").click()
    assert emails.counts()[State.DEAD] == 7 and ready(slow) == 0
    page.get_by_role("button", name="Redrive all that match").click()
    choose_target(page)
    page.get_by_role("button", name="Redrive 4").click()
    expect(page.locator(".toast")).to_have_text("4 ready again in emails-slow")
    assert {entry.id for entry in emails.entries(State.DEAD)} == set(others)
    assert {entry.id for entry in slow.entries(State.READY)} == set(matching)


def test_the_chosen_go_one_after_another_and_can_be_stopped(
    emails: pabal.Queue, slow: pabal.Queue, open_page: OpenPage
) -> None:
    let_die(emails, 40)
    page = open_page("#/queues/emails/dead")
    expect(page.locator("nav.tabs .dead")).to_contain_text("40")
    page.get_by_role("checkbox", name="Choose all that are shown").check()
    page.locator(".bulk").get_by_role("button", name="Redrive to").click()
    expect(page.get_by_role("dialog")).to_contain_text("the 40 chosen messages")
    choose_target(page, "0.5")
    page.get_by_role("button", name="Redrive 40").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.get_by_text(re.compile(r"[1-9]\d* of 40 redriven to emails-slow"))).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".toast", has_text=re.compile(r"Stopped: \d+ ready again in emails-slow"))).to_be_visible()
    moved = ready(slow)
    assert 1 <= moved < 40 and emails.counts()[State.DEAD] == 40 - moved
    expect(page.get_by_role("progressbar")).to_be_hidden()


def test_it_ends_when_the_operator_leaves_the_page(emails: pabal.Queue, slow: pabal.Queue, open_page: OpenPage) -> None:
    let_die(emails, 40)
    page = open_page("#/queues/emails/dead")
    expect(page.locator("nav.tabs .dead")).to_contain_text("40")
    page.get_by_role("button", name="Redrive all").click()
    choose_target(page, "0.5")
    page.get_by_role("button", name="Redrive 40").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    page.get_by_role("link", name="Consumers").click()
    expect(page.locator(".toast", has_text="Stopped")).to_be_visible()
    assert ready(slow) < 40 and emails.counts()[State.DEAD] == 40 - ready(slow)


def test_what_cannot_go_stays_dead_and_the_page_says_why(
    emails: pabal.Queue, slow: pabal.Queue, open_page: OpenPage
) -> None:
    slow.configure(pabal.Policy(body_schema={"type": "string"}))
    let_die(emails, 2)
    page = open_page("#/queues/emails/dead")
    expect(page.locator("nav.tabs .dead")).to_contain_text("2")
    page.get_by_role("button", name="Redrive all").click()
    choose_target(page)
    page.get_by_role("button", name="Redrive 2").click()
    expect(page.locator(".toast.bad")).to_contain_text("does not fit the schema of emails-slow")
    assert emails.counts()[State.DEAD] == 2 and ready(slow) == 0


def test_one_message_goes_to_another_queue_from_its_page(
    emails: pabal.Queue, slow: pabal.Queue, open_page: OpenPage
) -> None:
    [id] = let_die(emails, 1)
    page = open_page(f"#/queues/emails/message/{id}")
    expect(page.locator("#live-text")).to_have_text("live")  # and the page knows the queues
    page.get_by_role("button", name="Redrive to").click()
    page.get_by_label("To the queue").select_option("emails-slow")
    page.get_by_role("button", name="Redrive 1").click()
    expect(page.locator("h1")).to_contain_text("emails-slow")
    expect(page.locator(".lead")).to_contain_text("waits for a consumer")
    assert emails.find(id) is None and ready(slow) == 1


def test_every_attempt_is_shown_with_its_consumer(emails: pabal.Queue, open_page: OpenPage) -> None:
    emails.configure(pabal.Policy(retry=pabal.RetryPolicy(limit=3, initial=0)))
    emails.publish({"to": "ann"}, id="m1")
    other = pabal.Queue("emails", emails.store, consumer="worker-2")
    for queue, reason in ((emails, "mailbox busy"), (other, "받는 사람이 없습니다"), (other, "<b>no</b>")):
        queue.lease()[0].nack(reason=reason)
    page = open_page("#/queues/emails/message/m1")
    rows = page.locator("table.attempts tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("<b>no</b>")
    expect(rows.nth(1)).to_contain_text("받는 사람이 없습니다")
    expect(rows.nth(1)).to_contain_text("worker-2")
    expect(rows.nth(2)).to_contain_text("mailbox busy")


def test_the_messages_of_a_thread_and_the_reply_are_found(
    emails: pabal.Queue, mq: pabal.Connection, open_page: OpenPage
) -> None:
    emails.publish({"ask": 1}, id="m1", thread_id="order-7", reply_to="answers")
    with emails.lease()[0] as delivery:
        delivery.reply({"answer": "네"})
    mq.queue("invoices").publish({"for": "order-7"}, id="i1")
    mq.queue("invoices").publish({"for": "order-8"}, id="i2")
    page = open_page("#/queues/answers/ready")
    page.locator("td.id a").click()
    expect(page.locator("h1")).to_contain_text("m1.reply")
    page.get_by_role("link", name="all messages of m1").click()
    expect(page.locator("table.messages tbody tr")).to_have_count(2)  # the reply, and what is left of the request
    emails.publish({"ask": 2}, id="m2", thread_id="order-7", reply_to="answers")
    page.goto(f"{page.url.partition('#')[0]}#/queues/emails/message/m2")
    expect(page.get_by_role("link", name="answers / m2.reply")).to_be_visible()
    page.get_by_role("link", name="all messages of order-7").click()
    expect(page.get_by_text("2 found in")).to_be_visible()
    assert {row.split("\t")[0] for row in page.locator("table.messages tbody").inner_text().splitlines()} >= {
        "emails",
        "invoices",
    }
    ratio, words = page.evaluate(CONTRAST)
    assert ratio >= 4.5, words
    assert page.evaluate(NAMELESS) == []


def test_a_moved_dead_letter_leads_back_to_its_queue(
    emails: pabal.Queue, mq: pabal.Connection, open_page: OpenPage
) -> None:
    dead = pabal.DeadLetterPolicy(queue="graveyard", move=True)
    emails.configure(pabal.Policy(retry=pabal.RetryPolicy(limit=1), dead_letters=dead, done_retention=3600))
    emails.publish({"to": "ann"}, id="m1")
    emails.lease()[0].nack(reason="no")
    [moved] = mq.queue("graveyard").entries(State.READY)
    page = open_page(f"#/queues/graveyard/message/{moved.id}")
    page.get_by_role("link", name="emails / m1").click()
    expect(page.locator("h1")).to_contain_text("m1")
    expect(page.locator(".json")).to_contain_text("ann")
