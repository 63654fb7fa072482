"""A queue of 100,000 messages, and a body of the largest size, in Chromium."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

import pabal
from tests.gateway.web.conftest import OpenPage

MANY = 100_000


def test_a_hundred_thousand_messages_are_read_and_shown_a_page_at_a_time(
    mq: pabal.Connection, open_page: OpenPage
) -> None:
    for begin in range(0, MANY, 10_000):
        mq.queue("jobs").publish_many({"n": number} for number in range(begin, begin + 10_000))
    read: list[int] = []
    page = open_page()
    page.on(
        "response",
        lambda response: (
            read.append(len(response.json()["messages"])) if "/messages?" in response.url and response.ok else None
        ),
    )
    page.get_by_role("link", name="jobs").click()
    rows = page.locator("table.messages tbody tr")
    expect(rows).to_have_count(50)
    expect(page.locator("nav.tabs")).to_contain_text("100,000")
    for shown in (100, 150):
        page.get_by_role("button", name="Show more").click()
        expect(rows).to_have_count(shown)
    first = rows.first.text_content()
    mq.queue("jobs").publish(1)
    expect(page.locator("nav.tabs")).to_contain_text("100,001")  # the figures are live, and the list stands still
    assert rows.first.text_content() == first and rows.count() == 150
    page.get_by_role("searchbox", name="Search messages").fill('{"n":77777}')
    page.get_by_role("button", name="Search", exact=True).click()
    expect(rows).to_have_count(1, timeout=120_000)
    expect(rows).to_contain_text("77777")
    assert max(read) <= 50


def test_a_body_of_the_largest_size_is_shown_in_part_and_downloaded_whole(
    emails: pabal.Queue, open_page: OpenPage, tmp_path: Path
) -> None:
    emails.configure(pabal.Policy(max_bytes=64 << 20))
    body = "<script>" + "z" * ((64 << 20) - 2000)
    emails.publish(body, id="large", type="big")
    page = open_page("#/queues/emails/message/large")
    expect(page.locator("h2").first).to_contain_text("64.0 MiB")
    expect(page.locator("section")).to_contain_text(re.compile("this is its beginning"))
    assert len(page.locator("pre.body").text_content() or "") <= 2000
    with page.expect_download() as started:
        page.get_by_role("link", name="Download the body").click()
    started.value.save_as(tmp_path / "body")
    assert (tmp_path / "body").read_text() == f'"{body}"'
