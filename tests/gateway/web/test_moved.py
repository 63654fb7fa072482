"""Messages that were moved to a dead-letter queue, in Chromium: why they are there, and the way back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

import pabal
from pabal.store import State
from tests.gateway.web.conftest import OpenPage
from tests.services.browser import CONTRAST, NAMELESS, shoot


@pytest.fixture
def graves(emails: pabal.Queue, mq: pabal.Connection) -> pabal.Queue:
    letters = pabal.DeadLetterPolicy(queue="graves", move=True)
    emails.configure(pabal.Policy(retry=pabal.RetryPolicy(limit=1), dead_letters=letters))
    queue = mq.queue("graves")
    queue.create()
    return queue


def fail(queue: pabal.Queue, count: int = 1, reason: str = "SMTP 421: mailbox busy") -> list[str]:
    ids = [each.id for each in queue.publish_many([{"to": number} for number in range(count)])]
    for delivery in queue.lease(count):
        delivery.nack(reason=reason)
    return ids


def ready(queue: pabal.Queue) -> int:
    return queue.counts().get(State.READY, 0)


def test_a_message_says_where_it_came_from_and_why_and_goes_back(
    emails: pabal.Queue, graves: pabal.Queue, open_page: OpenPage, tmp_path: Path
) -> None:
    [first] = fail(emails)
    page = open_page("#/queues/graves/ready")
    expect(page.locator("table.messages tbody tr")).to_contain_text("moved from emails")
    page.locator("td.id a").click()
    expect(page.get_by_text("Moved here from emails, where it failed:")).to_be_visible()
    expect(page.locator(".failure")).to_contain_text("SMTP 421: mailbox busy")
    expect(page.get_by_role("link", name="emails", exact=True)).to_have_attribute("href", "#/queues/emails/ready")
    assert page.evaluate(CONTRAST)[0] >= 4.5 and page.evaluate(NAMELESS) == []
    shoot(page, "moved-message", tmp_path)
    page.get_by_role("button", name="Send back to emails").click()
    expect(page.get_by_role("dialog")).to_contain_text("Send 1 message to emails?")
    page.get_by_role("button", name="Cancel", exact=True).last.click()
    assert (ready(emails), ready(graves)) == (0, 1)
    page.get_by_role("button", name="Send back to emails").click()
    page.get_by_role("button", name="Send back 1").click()
    expect(page.locator("h1")).to_contain_text("emails")
    expect(page.locator("table.messages tbody tr")).to_have_count(1)
    assert (ready(emails), ready(graves)) == (1, 0)
    [entry] = emails.entries(State.READY)
    assert entry.message is not None and entry.message.headers == {"original-id": first}


def test_all_that_were_moved_are_counted_asked_for_and_go_back(
    emails: pabal.Queue, graves: pabal.Queue, mq: pabal.Connection, open_page: OpenPage
) -> None:
    fail(emails, 700)
    graves.publish({"sent": "here"})
    page = open_page("#/queues/graves/ready")
    page.get_by_role("button", name="Send back all that were moved here").click()
    expect(page.get_by_role("dialog")).to_contain_text("Send 700 messages to emails?")
    page.get_by_role("button", name="Cancel", exact=True).click()
    assert (ready(emails), ready(graves)) == (0, 701)
    page.get_by_role("button", name="Send back all that were moved here").click()
    page.get_by_role("button", name="Send back 700").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.locator(".toast", has_text="700 sent back to emails")).to_be_visible()
    assert (ready(emails), ready(graves)) == (700, 1)
    expect(page.get_by_role("button", name="Send back all")).to_be_hidden()


def test_what_is_left_where_it_failed_leads_to_the_dead_letter_queue(
    emails: pabal.Queue, graves: pabal.Queue, open_page: OpenPage
) -> None:
    [first] = fail(emails)
    page = open_page(f"#/queues/emails/message/{first}")
    expect(page.locator(".lead")).to_contain_text("was moved to its dead-letter queue graves")
    page.locator(".lead").get_by_role("link", name="graves").click()
    expect(page.locator("table.messages tbody tr")).to_have_count(1)
    emails.publish(1, id="taken-back")
    emails.cancel(["taken-back"])
    page.goto(f"{page.url.partition('#')[0]}#/queues/emails/message/taken-back")
    expect(page.locator(".lead")).to_contain_text("It was cancelled")


def test_a_copy_was_not_moved(emails: pabal.Queue, graves: pabal.Queue, open_page: OpenPage) -> None:
    fail(emails)
    page = open_page("#/queues/graves/ready")
    page.locator("td.id a").click()
    page.get_by_role("button", name="Edit a copy").click()
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".toast", has_text=re.compile("Sent as"))).to_be_visible()
    headers = [entry.message.headers for entry in graves.entries(State.READY) if entry.message]
    assert sorted(map(len, headers)) == [0, 2]
