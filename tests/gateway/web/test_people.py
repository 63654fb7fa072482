"""Needs you, team and kingdom in Chromium."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from pabal.apps.ignite.workspace import Workspace
from tests.apps.ignite.table import Served, ignite
from tests.gateway.conftest import Running, gateway
from tests.gateway.places import (
    answer_in_kingdom,
    answer_in_team,
    ask_in_kingdom,
    ask_in_team,
    make_kingdom,
    make_team,
)
from tests.gateway.web.conftest import OpenPage
from tests.services.browser import CONTRAST, NAMELESS, shoot
from tests.waiting import until

TASK = "task-20261118-001"


@pytest.fixture(autouse=True)
def no_places_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IGNITE_ROOT", raising=False)
    monkeypatch.delenv("KINGDOM_BASE_DIR", raising=False)


def test_sections_appear_with_their_application(shown: Running, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page()
    expect(page.locator("#live-text")).to_have_text("live")
    for name in ("Needs you", "Team", "Kingdom"):
        expect(page.get_by_role("link", name=name)).to_be_hidden()
    make_team(tmp_path)
    expect(page.get_by_role("link", name="Team")).to_be_visible()
    expect(page.get_by_role("link", name="Needs you")).to_be_visible()
    expect(page.get_by_role("link", name="Kingdom")).to_be_hidden()
    page.get_by_role("link", name="Needs you").click()
    expect(page.get_by_text("Nothing waits for you")).to_be_visible()


def test_a_question_is_seen_first_and_answered_by_a_choice_or_a_text(open_page: OpenPage, tmp_path: Path) -> None:
    team, town = make_team(tmp_path), make_kingdom(tmp_path)
    asked = ask_in_team(team, "Deploy <b>now</b>?", ("now", "not today"), urgent=True)
    ask_in_kingdom(town, TASK, "Which branch?\nmain or next")
    page = open_page()
    expect(page.locator("#waiting")).to_have_text("2")
    expect(page.locator(".needs-first")).to_contain_text("Deploy <b>now</b>?")
    page.locator(".glance-need").first.click()
    cards = page.locator("article.need")
    expect(cards).to_have_count(2)
    expect(cards.first).to_contain_text("urgent")
    cards.first.get_by_role("button", name="not today").click()
    expect(page.locator(".toast")).to_have_text("Answered: not today")
    expect(cards).to_have_count(1)
    assert answer_in_team(team, asked.id).answer == "not today"
    box = page.get_by_role("textbox", name=re.compile("Answer to"))
    box.fill("next, 그리고 main")
    ask_in_team(team, "Another one?")  # what a person types stays, whatever comes meanwhile
    expect(cards).to_have_count(2)
    expect(page.locator("article", has_text="Which branch?").get_by_role("textbox")).to_have_value("next, 그리고 main")
    page.locator("article", has_text="Which branch?").get_by_role("button", name="Answer").click()
    expect(cards).to_have_count(1)
    kept = answer_in_kingdom(town, TASK)
    assert (kept.answer, kept.via) == ("next, 그리고 main", "dashboard")
    expect(page.locator("#waiting")).to_have_text("1")


def test_mail_to_the_person_is_read_and_replied_to(open_page: OpenPage, tmp_path: Path) -> None:
    team = make_team(tmp_path)
    ignite(team, "say", "user", "The report is ready.\nIt is in docs/.", "--subject", "The report", "--from", "leader")
    page = open_page("#/needs")
    card = page.locator("article.need")
    expect(card).to_contain_text("It is in docs/.")
    card.get_by_role("textbox").fill("Thank you")
    card.get_by_role("button", name="Reply").click()
    expect(page.get_by_text("Nothing waits for you")).to_be_visible()
    with Workspace.open(team) as workspace:
        assert workspace.mail.load("leader").ready == 1


def test_who_answers_second_is_told_who_was_first(open_page: OpenPage, tmp_path: Path) -> None:
    town = make_kingdom(tmp_path)
    ask_in_kingdom(town, TASK, "Who?", ("ann", "ben"))
    first, second = open_page("#/needs"), open_page("#/needs")
    expect(second.get_by_role("button", name="ben")).to_be_visible()
    # The page of the second person hears nothing for some time, and still shows the question.
    second.route("**/needs", lambda route: None)
    first.get_by_role("button", name="ann").click()
    until(lambda: answer_in_kingdom(town, TASK).state == "answered")
    second.get_by_role("button", name="ben").click()
    expect(second.locator(".toast.bad")).to_contain_text("was answered already")
    second.unroute("**/needs")
    second.reload()
    expect(second.get_by_text("Nothing waits for you")).to_be_visible()
    assert answer_in_kingdom(town, TASK).answer == "ann"


def test_a_gateway_that_only_shows_has_no_way_to_answer(browser: Browser, url: str, tmp_path: Path) -> None:
    ask_in_team(make_team(tmp_path), "Go on?", ("yes", "no"))
    with gateway(url, tmp_path / "log", "--read-only") as only, browser.new_context() as context:
        page = context.new_page()
        page.goto(only.dashboard)
        page.goto(f"{only.address}/#/needs")
        card = page.locator("article.need")
        expect(card).to_contain_text("You may look, and not answer")
        expect(card.get_by_role("button")).to_have_count(0)


def test_the_team_and_the_kingdom_are_shown_and_readable(open_page: OpenPage, tmp_path: Path) -> None:
    team, town = make_team(tmp_path), make_kingdom(tmp_path)
    ask_in_team(
        team,
        "The tests pass on staging. Deploy release 2.4 to production?",
        ("now", "tomorrow 09:00", "no"),
        urgent=True,
    )
    ask_in_kingdom(town, TASK, "The pull request touches the billing tables. Which migration window shall I take?")
    ignite(team, "say", "user", "The report is in docs/report.md", "--from", "leader")
    served = Served(team)
    try:
        for body in ("goal: write the release notes", "goal: answer the open issues"):
            ignite(team, "send", "--to", "worker", "--type", "user_goal", "--body", body)
        page = open_page(viewport={"width": 1280, "height": 560})
        page.goto(f"{page.url.partition('#')[0]}#/team")
        row = page.get_by_role("row", name=re.compile("worker"))
        expect(row).to_contain_text("user_goal from user")
        page.goto(f"{page.url.partition('#')[0]}#/kingdom")
        expect(page.get_by_text("The kingdom is down")).to_be_visible()
        expect(page.get_by_role("row", name=re.compile("king"))).to_be_visible()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
            for name, path, ready in (
                ("dashboard-needs", "needs", "article.need"),
                ("dashboard-team", "team", "table tbody tr"),
                ("dashboard-kingdom", "kingdom", "table tbody tr"),
                ("dashboard-first", "", ".glance-need"),
            ):
                page.goto(f"{page.url.partition('#')[0]}#/{path}")
                expect(page.locator(ready).first).to_be_visible()
                expect(page.locator("#waiting")).to_have_text("3")
                ratio, words = page.evaluate(CONTRAST)
                assert ratio >= 4.5, (name, scheme, words)
                assert page.evaluate(NAMELESS) == []
                if scheme == "light" and path == "needs":
                    shoot(page, name, tmp_path)
                else:
                    page.screenshot(path=tmp_path / f"{name}-{scheme}.png")
        for width in (320, 390, 720, 1600):
            page.set_viewport_size({"width": width, "height": 800})
            for path, ready in (
                ("needs", "article.need"),
                ("team", "table"),
                ("kingdom", "table"),
                ("", ".glance-need"),
            ):
                page.goto(f"{page.url.partition('#')[0]}#/{path}")
                expect(page.locator(ready).first).to_be_attached()
                wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert wider == 0, (path, width)
                if width == 390:
                    page.screenshot(path=tmp_path / f"phone-{path or 'first'}.png")
    finally:
        served.stop()
