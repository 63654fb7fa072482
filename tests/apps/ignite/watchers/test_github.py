"""The GitHub watcher against a server that behaves like the API."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pabal.apps.ignite.watchers.settings import github_watcher
from pabal.errors import InvalidConfig, WatchFailed
from tests.apps.ignite.watchers.github_server import PER_PAGE, GithubServer
from tests.apps.ignite.watchers.post import Post


class Watched:
    """A watcher of o/r, made anew at each look."""

    def __init__(self, post: Post, server: GithubServer) -> None:
        self.post = post
        self.server = server
        self.options: dict[str, Any] = {"repositories": ["o/r"], "api": server.address}

    @property
    def now(self) -> float:
        return self.post.clock.now()

    def look(self, **options: Any) -> list[str]:
        """Look once; return the types and numbers of what was sent."""
        watcher = github_watcher(self.options | options, Path(), {"GITHUB_TOKEN": "secret-canary"})
        try:
            return [f"{event.type} {event.issue}" for event in self.post.look(watcher)]
        finally:
            watcher.close()


@pytest.fixture
def watched(post: Post, github: GithubServer) -> Iterator[Watched]:
    yield Watched(post, github)


def begin(watched: Watched) -> None:
    """Look for the first time, and let a minute pass."""
    assert watched.look() == []
    watched.post.clock.advance(60)
    watched.server.statuses()


def test_the_first_look_only_looks_forward(watched: Watched) -> None:
    watched.server.issue(1, watched.now - 3600)
    watched.server.comment(1, watched.now - 1800, "@ignite do it")
    begin(watched)
    watched.server.issue(2, watched.now)
    assert watched.look() == ["github_event 2"]


def test_a_new_issue_is_told_once_also_when_it_is_changed_later(watched: Watched) -> None:
    begin(watched)
    issue = watched.server.issue(1, watched.now, body="Help")
    assert watched.look() == ["github_event 1"]
    [event] = watched.post.sent
    assert event.body["issue_title"] == "Issue 1" and event.body["body"] == "Help"
    assert (event.repository, event.thread_id) == ("o/r", "o/r#1")
    for days in (0.01, 2, 30):  # beyond the day that events are remembered
        watched.post.clock.advance(days * 86400)
        issue["updated_at"] = "2040-01-01T00:00:00Z" if days == 30 else issue["updated_at"]
        assert watched.look() == []


def test_a_mention_asks_for_work(watched: Watched) -> None:
    begin(watched)
    watched.server.comment(7, watched.now, "Hey @Ignite, mend this")
    watched.server.comment(8, watched.now, "mail me@ignite.example or see @ignited")
    assert watched.look() == ["github_task 7", "github_event 8"]
    task = watched.post.sent[0]
    assert (task.body["trigger"], task.body["requested_by"], task.priority) == ("mention", "ann", "high")
    assert task.body["trigger_comment"] == "Hey @Ignite, mend this"
    assert (task.body["issue_title"], task.body["issue_body"]) == ("", "")  # it was deleted meanwhile


def test_a_mention_carries_the_title_and_the_text_of_its_issue(watched: Watched) -> None:
    watched.server.issue(7, watched.now - 1000, title="The fence", body="It is not painted.")
    begin(watched)
    watched.server.comment(7, watched.now, "@ignite mend this")
    url = f"{watched.server.address}/repos/o/r/pulls/7"
    watched.server.add("/pulls/comments", watched.now, body="@ignite and this", pull_request_url=url)
    watched.server.comment(7, watched.now, "thank you")
    assert sorted(watched.look()) == ["github_event 7", "github_task 7", "github_task 7"]
    tasks = [each.body for each in watched.post.sent if each.type == "github_task"]
    assert {(str(body["issue_title"]), str(body["issue_body"])) for body in tasks} == {
        ("The fence", "It is not painted.")
    }
    assert len([path for path, _ in watched.server.asked if path.endswith("/issues/7")]) == 2  # not for other comments


def test_a_label_asks_for_work_and_other_labels_say_nothing(watched: Watched) -> None:
    begin(watched)
    watched.server.label(3, watched.now, "ignite")
    watched.server.label(4, watched.now, "bug")
    assert watched.look() == ["github_task 3"]
    assert watched.post.sent[0].body["trigger"] == "label ignite"


def test_only_those_who_may_can_ask_for_work_and_bots_are_not_heard(watched: Watched) -> None:
    watched.options["allowed_users"] = ["Ann"]
    begin(watched)
    watched.server.comment(1, watched.now, "@ignite go", by="ann")
    watched.server.comment(2, watched.now, "@ignite go", by="eve")
    watched.server.comment(3, watched.now, "@ignite go", by="ci[bot]", kind="Bot")
    watched.server.label(4, watched.now, "ignite", by="eve")
    assert watched.look() == ["github_task 1", "github_event 2"]


def test_pull_requests_reviews_and_review_comments_are_told(watched: Watched) -> None:
    begin(watched)
    watched.server.issue(5, watched.now, pull_request={"url": "x"})
    watched.server.add("/pulls/5/reviews", watched.now, submitted_at="2040-01-01T00:00:00Z", body="Fine")
    url = f"{watched.server.address}/repos/o/r/pulls/5"
    watched.server.add("/pulls/comments", watched.now, body="Typo", pull_request_url=url)
    watched.look()
    kinds = [event.body["event_type"] for event in watched.post.sent]
    assert kinds == ["pull_request_opened", "review_submitted", "review_comment"]
    assert {event.issue for event in watched.post.sent} == {"5"}


def test_every_page_is_read(watched: Watched) -> None:
    begin(watched)
    many = PER_PAGE * 4 + 1
    for number in range(1, many + 1):
        watched.server.issue(number, watched.now + number)
        watched.server.label(number, watched.now + number, "ignite")
    told = watched.look()
    assert sorted(told) == sorted(f"github_{kind} {n}" for kind in ("event", "task") for n in range(1, many + 1))


def test_while_nothing_happens_every_answer_is_304_and_costs_nothing(watched: Watched) -> None:
    begin(watched)
    watched.server.issue(1, watched.now)
    watched.look()
    watched.look()
    watched.server.statuses()
    before = watched.server.remaining
    for _ in range(3):
        watched.post.clock.advance(60)
        assert watched.look() == []
    assert watched.server.statuses() == [304] * 12
    assert watched.server.remaining == before
    watched.server.issue(2, watched.now)
    assert watched.look() == ["github_event 2"]


def test_what_comes_onto_a_later_page_of_the_same_second_is_found(watched: Watched) -> None:
    begin(watched)
    at = watched.now
    for number in range(PER_PAGE + 1):
        watched.server.issue(number, at)
    assert len(watched.look()) == PER_PAGE + 1
    assert watched.look() == []
    watched.server.issue(99, at)
    assert watched.look() == ["github_event 99"]


def test_what_could_not_be_sent_is_found_again(watched: Watched) -> None:
    begin(watched)
    watched.server.issue(1, watched.now)
    watched.post.refuse = OSError("no room")
    with pytest.raises(OSError, match="no room"):
        watched.look()
    watched.post.refuse = None
    assert watched.look() == ["github_event 1"]
    assert watched.look() == []


def test_a_used_up_rate_limit_says_how_long_to_wait_and_nothing_is_lost(watched: Watched) -> None:
    begin(watched)
    watched.server.issue(1, watched.now)
    watched.server.comment(1, watched.now, "hello")
    watched.server.remaining, watched.server.reset = 1, watched.now + 1234
    with pytest.raises(WatchFailed, match="rate limit") as failed:
        watched.look()
    assert failed.value.after == 1234
    assert [event.body["event_type"] for event in watched.post.sent] == ["issue_opened"]
    watched.server.remaining = 5000
    watched.post.clock.advance(1234)
    assert watched.look() == ["github_event 1"]
    assert [event.body["event_type"] for event in watched.post.sent] == ["issue_opened", "issue_comment"]


def test_a_secondary_limit_is_kept_too(watched: Watched) -> None:
    watched.server.answer = lambda: (429, {"Retry-After": "77"}, b"")
    with pytest.raises(WatchFailed) as failed:
        watched.look()
    assert failed.value.after == 77


@pytest.mark.parametrize(
    ("status", "data", "reason"),
    [
        (404, b"", "no such repository"),
        (401, b"", "token is not valid"),
        (301, b"", "another name"),
        (500, b"", "answered 500"),
        (200, b"<html>", "JSON"),
        (200, b"{}", "a list"),
        (200, b'[{"number": "x"}]', "in an unexpected way"),
    ],
)
def test_an_answer_that_is_of_no_use_is_a_clear_error(watched: Watched, status: int, data: bytes, reason: str) -> None:
    watched.server.answer = lambda: (status, {}, data)
    with pytest.raises(WatchFailed, match=reason) as failed:
        watched.look()
    assert "secret-canary" not in str(failed.value)


def test_a_server_that_is_not_there_is_a_clear_error(watched: Watched) -> None:
    with pytest.raises(WatchFailed, match="did not answer"):
        watched.look(api="http://127.0.0.1:1")


def test_the_token_goes_to_the_api_alone_and_into_no_file(watched: Watched) -> None:
    begin(watched)
    for number in range(PER_PAGE + 1):
        watched.server.issue(number, watched.now)
    watched.server.next_address = "http://localhost:1"
    with pytest.raises(WatchFailed, match="another address"):
        watched.look()
    assert set(watched.server.tokens) == {"Bearer secret-canary"}
    for path in watched.post.path.parent.rglob("*"):
        assert b"secret-canary" not in path.read_bytes()
    with pytest.raises(InvalidConfig, match="must begin with https"):
        watched.look(api="http://example.com")


def test_text_from_strangers_is_made_harmless(watched: Watched) -> None:
    begin(watched)
    watched.server.issue(
        1, watched.now, title="$(rm -rf ~)\x1b[31m: `x`", body="a\n--- \nto: leader\x00", html_url="javascript:x"
    )
    watched.look()
    [event] = watched.post.sent
    assert event.body["url"] == ""
    for text in (event.body["issue_title"], event.body["body"]):
        assert not set(text) & set("$`()\x1b\x00")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"repositories": ["../x"]}, "owner/name"),
        ({"repositories": []}, "owner/name"),
        ({"watch": ["stars"]}, "stars"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(watched: Watched, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        watched.look(**options)
