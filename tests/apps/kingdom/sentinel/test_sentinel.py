"""The watchers against servers that speak as GitHub and Jira do, and against real programs."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.sentinel.role import CursorFile, Sentinel
from pabal.apps.kingdom.sentinel.settings import PROBLEMS
from pabal.apps.kingdom.status import report
from pabal.runtime.wake import FdWatch
from pabal.testing import ManualClock
from pabal.watchers.github import GithubClient
from tests.apps.kingdom.realm import Realm, eventually
from tests.apps.kingdom.servers import Answer, GithubServer, JiraServer


@pytest.fixture
def github() -> Iterator[GithubServer]:
    with closing(GithubServer()) as server:
        yield server


@pytest.fixture
def jira(clock: ManualClock) -> Iterator[JiraServer]:
    with closing(JiraServer(clock.now)) as server:
        yield server


class Killed(BaseException):
    pass


class Watch:
    """A sentinel over one kingdom, in this process."""

    def __init__(self, realm: Realm, clock: ManualClock, **polling: Any) -> None:
        (realm.root / "config/sentinel.yaml").write_text(json.dumps({"polling": polling}))
        self.realm, self.clock = realm, clock
        self.watch = FdWatch()
        self.sentinel = Sentinel(realm.home, self.watch)

    def look(self, pause: float = 301.0) -> None:
        """Let the pause pass, then work until nothing is due."""
        self.clock.advance(pause)
        end = time.monotonic() + 20
        self.sentinel.step()
        while self.sentinel.next_due() < 2:
            assert time.monotonic() < end, "it never rests"
            if self.sentinel.next_due() > 0:
                self.watch.wait(0.5)
            self.sentinel.step()
        self.sentinel.step()

    def problem(self, name: str) -> str:
        found: dict[str, str] = json.loads((self.realm.root / PROBLEMS).read_text())["watchers"]
        return found.get(name, "")

    def close(self) -> None:
        self.sentinel.close()
        self.watch.close()


def over_github(realm: Realm, clock: ManualClock, github: GithubServer, **options: Any) -> Watch:
    realm.home.variables = {**realm.variables, "GITHUB_TOKEN": "secret"}
    return Watch(realm, clock, github={"api": github.address, **options})


def types(realm: Realm) -> dict[str, str]:
    return {body["id"]: body["type"] for body in realm.bodies("events")}


def test_every_page_of_notifications_becomes_events_and_is_marked_read(
    realm: Realm, clock: ManualClock, github: GithubServer
) -> None:
    for number in range(5):
        github.notify(str(number))
    with closing(over_github(realm, clock, github)) as watch:
        watch.look()
    assert types(realm) == {
        f"evt-github-{number}-2026-02-07T10:00:00Z": "github.pr.review_requested" for number in range(5)
    }
    assert github.unread == {}
    assert all(asked.headers["Authorization"] == "Bearer secret" for asked in github.asked)
    [first, *_] = realm.bodies("events")
    assert first["repo"] == "o/r" and first["payload"]["pr_number"] == "7" and first["priority"] == "normal"


def test_more_than_a_hundred_pages_are_read_to_the_last(realm: Realm, clock: ManualClock, github: GithubServer) -> None:
    for number in range(210):
        github.notify(str(number))
    with closing(over_github(realm, clock, github)) as watch:
        watch.look()
    assert len(types(realm)) == 210 and github.unread == {}


def test_a_server_that_leads_in_circles_is_not_followed(realm: Realm, clock: ManualClock, github: GithubServer) -> None:
    link = {"Link": f'<{github.address}/notifications?page=2>; rel="next"'}
    github.refusal = lambda asked: Answer(200, [], link)
    with closing(over_github(realm, clock, github)) as watch:
        watch.look()
        assert "leads in circles" in watch.problem("github")
    assert len(github.asked) == 2


def test_7_the_mark_of_the_last_look_is_kept_and_used(realm: Realm, clock: ManualClock, github: GithubServer) -> None:
    github.notify("1")
    with closing(over_github(realm, clock, github, mark_read=False)) as watch:
        watch.look()
    with closing(over_github(realm, clock, github, mark_read=False)) as watch:
        watch.look()
        asked = github.asked[-1].headers
        assert asked["If-None-Match"].startswith('"') and asked["If-Modified-Since"].startswith("Sat")
        github.notify("2")
        watch.look()
    assert len(types(realm)) == 2


def test_7_an_empty_mark_is_not_sent(realm: Realm, clock: ManualClock, github: GithubServer) -> None:
    (realm.root / "state/sentinel/github-state.json").write_text('{"etag": "", "last_modified": ""}')
    with closing(over_github(realm, clock, github)) as watch:
        watch.look()
    assert "If-None-Match" not in github.asked[0].headers


@pytest.mark.parametrize("where", ["emit", "mark_read", "remember"])
def test_7_a_sentinel_that_dies_at_any_moment_loses_no_event_and_leaves_none_unread(
    realm: Realm, clock: ManualClock, github: GithubServer, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def die(*args: object) -> None:
        raise Killed

    for number in range(3):
        github.notify(str(number))
    owner: type = {"emit": Home, "mark_read": GithubClient, "remember": CursorFile}[where]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, where, die)
        over_github(realm, clock, github).look()
    with closing(over_github(realm, clock, github)) as watch:
        watch.look()
    assert len(types(realm)) == 3 and github.unread == {}


def test_a_notification_that_changed_again_is_a_new_event_and_the_same_one_is_not(
    realm: Realm, clock: ManualClock, github: GithubServer
) -> None:
    with closing(over_github(realm, clock, github)) as watch:
        for at in ("10:00:00", "10:00:00", "11:00:00"):
            github.notify("1", updated_at=f"2026-02-07T{at}Z")
            watch.look()
    assert sorted(types(realm)) == ["evt-github-1-2026-02-07T10:00:00Z", "evt-github-1-2026-02-07T11:00:00Z"]


def test_types_follow_subject_and_reason(realm: Realm, clock: ManualClock, github: GithubServer) -> None:
    issue = {"title": "t", "url": "https://api.github.com/repos/o/r/issues/3", "type": "Issue"}
    github.notify("1", "mention")
    github.notify("2", "state_change")
    github.notify("3", "assign", subject=issue)
    github.notify("4", "mention", subject=issue)
    github.notify("5", "ci_activity", subject={"title": "t", "url": None, "type": "CheckSuite"})
    with closing(over_github(realm, clock, github)) as watch:
        watch.look()
    found = {
        body["payload"]["notification_thread_id"]: (body["type"], body["priority"]) for body in realm.bodies("events")
    }
    assert found == {
        "1": ("github.pr.mentioned", "normal"),
        "2": ("github.pr.state_change", "low"),
        "3": ("github.issue.assigned", "normal"),
        "4": ("github.issue.mentioned", "low"),
        "5": ("github.notification.ci_activity", "low"),
    }


def test_only_the_repositories_and_reasons_asked_for_become_events(
    realm: Realm, clock: ManualClock, github: GithubServer
) -> None:
    github.notify("1")
    github.notify("2", repository={"full_name": "o/other"})
    github.notify("3", "mention")
    with closing(over_github(realm, clock, github, repos=["o/r"], reasons=["review_requested"])) as watch:
        watch.look()
    assert [id.split("-")[2] for id in types(realm)] == ["1"]
    assert set(github.unread) == {"2", "3"}


def test_a_rate_limit_and_a_poll_interval_are_honoured(realm: Realm, clock: ManualClock, github: GithubServer) -> None:
    github.notify("1")
    github.poll_interval = "400"
    reset = int(clock.now() + 2000)
    github.refusal = lambda asked: Answer(403, {}, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(reset)})
    with closing(over_github(realm, clock, github)) as watch:
        watch.look(1)
        watch.look(1900)
        assert len(github.asked) == 1 and "rate limit" in watch.problem("github")
        github.refusal = lambda asked: None
        watch.look(200)
        assert len(types(realm)) == 1 and watch.problem("github") == ""
        before = github.count("GET")
        watch.look(390)
        assert github.count("GET") == before
        watch.look(20)
        assert github.count("GET") == before + 1


def test_what_cannot_be_understood_is_named_and_the_rest_comes_through(
    realm: Realm, clock: ManualClock, github: GithubServer
) -> None:
    github.unread["bad"] = {"id": "bad"}
    github.notify("1")
    with closing(over_github(realm, clock, github)) as watch:
        watch.look()
        assert len(types(realm)) == 1 and "cannot be understood" in watch.problem("github")


def test_a_server_that_sends_us_elsewhere_does_not_get_the_token_there(
    realm: Realm, clock: ManualClock, github: GithubServer
) -> None:
    github.notify("1")
    github.refusal = lambda asked: Answer(200, [], {"Link": '<http://127.0.0.1:1/steal>; rel="next"'})
    with closing(over_github(realm, clock, github)) as watch:
        watch.look()
        assert "another address" in watch.problem("github")


def over_jira(realm: Realm, clock: ManualClock, jira: JiraServer) -> Watch:
    realm.home.variables = {**realm.variables, "JIRA_USER_EMAIL": "a@b.c", "JIRA_API_TOKEN": "t"}
    return Watch(realm, clock, jira={"url": jira.address})


def test_7_new_tickets_and_changed_ones_are_told_once_with_their_new_status(
    realm: Realm, clock: ManualClock, jira: JiraServer
) -> None:
    for number in range(5):
        jira.change(f"QP-{number}", "Open")
    with closing(over_jira(realm, clock, jira)) as watch:
        watch.look()
        assert set(types(realm).values()) == {"jira.ticket.assigned"} and len(types(realm)) == 5
        for status in ("Doing", "Doing", "Done"):
            jira.change("QP-1", status)
            watch.look()
    updated = [body for body in realm.bodies("events") if body["type"] == "jira.ticket.updated"]
    found = [(body["payload"]["previous_status"], body["payload"]["status"]) for body in updated]
    assert sorted(found) == [("Doing", "Done"), ("Open", "Doing")]
    assert jira.asked[0].headers["Authorization"].startswith("Basic ")


def test_7_a_sentinel_that_dies_before_it_could_remember_loses_no_ticket(
    realm: Realm, clock: ManualClock, jira: JiraServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*args: object) -> None:
        raise Killed

    jira.change("QP-1", "Open")
    with closing(over_jira(realm, clock, jira)) as watch:
        watch.look()
    jira.change("QP-1", "Doing")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Home, "emit", die)
        over_jira(realm, clock, jira).look()
    clock.advance(3600)  # it was away for an hour
    with closing(over_jira(realm, clock, jira)) as watch:
        watch.look()
    assert sorted(types(realm).values()) == ["jira.ticket.assigned", "jira.ticket.updated"]


PROGRAM = """\
import json, os
count = json.loads(os.environ["WATCH_STATE"]).get("count", 0) + 1
print(json.dumps({"id": f"evt-mine-{count}", "type": "mine.thing", "payload": {"text": "$(touch /tmp/x); `id`"}}))
print("no event")
print(json.dumps({"state": {"count": count}}))
"""


def test_a_program_that_prints_lines_is_a_watcher(realm: Realm, clock: ManualClock) -> None:
    with closing(Watch(realm, clock, mine={"command": [sys.executable, "-c", PROGRAM]})) as watch:
        watch.look()
        watch.look()
        assert types(realm) == {"evt-mine-1": "mine.thing", "evt-mine-2": "mine.thing"}
        assert "no event" in watch.problem("mine")


def test_a_program_that_fails_or_hangs_is_named_and_what_it_printed_does_not_count(
    realm: Realm, clock: ManualClock
) -> None:
    failing = 'import sys; print(\'{"id": "evt-x", "type": "t"}\'); sys.exit(\'out of luck\')'
    hanging = "import time; time.sleep(600)"
    polling = {
        "failing": {"command": [sys.executable, "-c", failing]},
        "hanging": {"command": [sys.executable, "-c", hanging], "timeout_seconds": 5},
    }
    with closing(Watch(realm, clock, **polling)) as watch:
        clock.advance(1)
        for _ in range(200):
            watch.sentinel.step()
            watch.watch.wait(0.1)
            clock.advance(0.5)
            if watch.problem("failing") and watch.problem("hanging"):
                break
        assert "ended with 1: out of luck" in watch.problem("failing")
        assert "did not end in time" in watch.problem("hanging")
    assert types(realm) == {}


def test_a_watcher_that_cannot_be_used_is_skipped_and_named(
    realm: Realm, clock: ManualClock, github: GithubServer
) -> None:
    github.notify("1")
    polling = {
        "github": {"api": github.address},
        "jira": {"url": "http://jira.example"},
        "mine": {"command": ["/no/such/program"]},
        "typo": {"comand": []},
    }
    with closing(Watch(realm, clock, **polling)) as watch:
        watch.look()
        assert "https" in watch.problem("jira") and "not there" in watch.problem("mine") and watch.problem("typo")
        assert any("watcher jira: " in problem for problem in report(realm.home).problems)
    assert len(types(realm)) == 1


def test_the_sentinel_as_a_process_emits_and_stops_when_told(living: Realm, github: GithubServer) -> None:
    github.notify("1")
    document = {"polling": {"github": {"api": github.address, "interval_seconds": 0.2}}}
    (living.root / "config/sentinel.yaml").write_text(json.dumps(document))
    role = living.start("role", "sentinel")
    eventually(lambda: len(types(living)) == 1, lambda: living.log)
    github.notify("2", updated_at="2026-02-08T10:00:00Z")
    eventually(lambda: len(types(living)) == 2 and github.unread == {}, lambda: living.log)
    role.terminate()
    assert role.wait(30) == 0, living.log
