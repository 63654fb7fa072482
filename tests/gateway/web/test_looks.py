"""How the dashboard looks: light and dark, narrow and wide. With PABAL_PICTURES=1 its pictures are made anew."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from playwright.sync_api import expect

import pabal
from tests.gateway.web.conftest import OpenPage
from tests.services.browser import CONTRAST, NAMELESS, shoot


@pytest.fixture
def shop(mq: pabal.Connection) -> pabal.Connection:
    """A store with some of everything."""
    chance = random.Random(7)
    emails = mq.queue("emails")
    emails.create(pabal.Policy(retry=pabal.RetryPolicy(limit=1)))
    names = ["ann", "ben", "cho", "김민아", "健司"]
    for number in range(24):
        to = f"{chance.choice(names)}@example.org"
        emails.publish({"to": to, "template": "order-shipped", "order": 1000 + number}, type="email.send")
    for delivery in emails.lease(4):
        delivery.nack(reason="SMTP 421: mailbox busy, try again later")
    emails.ack_many(emails.lease(6))
    emails.lease(2)
    mq.queue("thumbnails").publish_many([{"image": number} for number in range(1280)])
    mq.queue("reports").publish({"month": "2026-10"}, delay=3600)
    mq.queue("payments").publish({"amount": 1250, "currency": "KRW"})
    mq.queue("payments").pause()
    mq.queue("webhooks").publish_many([{"n": number} for number in range(3)])
    return mq


def test_the_pages_are_readable_in_light_and_in_dark(
    shop: pabal.Connection, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page(viewport={"width": 1280, "height": 560})
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
        for name, path, ready in (
            ("dashboard", "", "table.queues tbody tr"),
            ("dashboard-queue", "queues/emails/dead", "table.messages tbody tr"),
            ("dashboard-message", "", ".failure"),
        ):
            if name == "dashboard-message":
                page.locator("td.id a").first.click()
            else:
                page.goto(f"{page.url.partition('#')[0]}#/{path}")
            expect(page.locator(ready).first).to_be_visible()
            expect(page.locator("#live-text")).to_have_text("live")
            ratio, words = page.evaluate(CONTRAST)
            assert ratio >= 4.5, (name, scheme, words)
            assert page.evaluate(NAMELESS) == []
            shoot(page, name if scheme == "light" else f"{name}-dark", tmp_path)


@pytest.mark.parametrize("width", [320, 390, 720, 1600])
def test_nothing_is_wider_than_the_page(shop: pabal.Connection, open_page: OpenPage, width: int) -> None:
    page = open_page(viewport={"width": width, "height": 700})
    for path, ready in (
        ("", "table.queues tbody tr"),
        ("queues/emails/ready", "table.messages tbody tr"),
        ("queues/emails/dead", ".why"),
    ):
        page.goto(f"{page.url.partition('#')[0]}#/{path}")
        expect(page.locator(ready).first).to_be_attached()
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


def test_a_phone_shows_the_whole_overview(shop: pabal.Connection, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(viewport={"width": 390, "height": 780})
    expect(page.locator("table.queues tbody tr")).to_have_count(5)
    expect(page.locator("#live-text")).to_have_text("live")
    assert page.evaluate("(at => at.scrollWidth - at.clientWidth)(document.querySelector('.scroll'))") == 0
    heads = page.locator("table.queues thead th:visible")
    assert heads.all_inner_texts() == ["Queue", "Ready", "In flight", "Delayed", "Dead"]
    thumbnails = page.get_by_role("row").filter(has_text="thumbnails")
    expect(thumbnails.locator(".narrow")).to_contain_text("oldest")
    tops = page.evaluate("[...document.querySelectorAll('nav a:not([hidden])')].map(link => link.offsetTop)")
    assert len(tops) == 5 and len(set(tops)) == 1  # one line, from Queues to Search
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
        ratio, words = page.evaluate(CONTRAST)
        assert ratio >= 4.5, (scheme, words)
        shoot(page, f"phone-{scheme}", tmp_path)
