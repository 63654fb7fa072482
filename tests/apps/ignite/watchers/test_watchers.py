"""What every watcher is owed: nothing lost, nothing told twice, nothing told from before it began."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pabal.apps.ignite.watchers.events import LONGEST, many_lines, one_line
from pabal.apps.ignite.watchers.settings import command_watcher, files_watcher
from pabal.errors import InvalidConfig, StoreFailed, WatchFailed
from pabal.watchers import Event, Found, Look
from pabal.watchers.command import CommandWatcher
from tests.apps.ignite.watchers.post import Post


def event(key: str, at: float) -> Event:
    return Event(key=key, type="user_goal", body={"goal": key}, at=at)


class Scripted:
    """A watcher that finds what it is told to, in steps."""

    def __init__(self, *steps: tuple[Event, ...], fails: bool = False) -> None:
        self.steps = steps
        self.fails = fails
        self.looks: list[Look] = []

    def poll(self, look: Look) -> Iterator[Found[Event]]:
        self.looks.append(look)
        for number, events in enumerate(self.steps, 1):
            yield Found(events, {"step": number})
        if self.fails:
            raise WatchFailed("no more today", after=50)


def keys(events: list[Event]) -> list[str]:
    return [each.key for each in events]


def test_an_event_is_told_once(post: Post) -> None:
    now = post.clock.now()
    assert keys(post.look(Scripted((event("a", now), event("a", now)), (event("a", now), event("b", now))))) == [
        "a",
        "b",
    ]
    assert not post.look(Scripted((event("a", now), event("b", now))))


def test_what_happened_before_the_watch_began_is_no_news(post: Post) -> None:
    post.look(Scripted())
    assert not post.look(Scripted((event("old", post.clock.now() - 1),)))


def test_a_forgotten_event_is_not_told_again(post: Post) -> None:
    at = post.clock.now()
    post.look(Scripted((event("a", at),)))
    post.clock.advance(3 * 86400)
    post.look(Scripted())
    assert json.loads(post.path.read_text())["processed_events"] == {}
    assert not post.look(Scripted((event("a", at),)))


def test_what_happened_while_the_watcher_was_down_for_a_week_is_told(post: Post) -> None:
    post.look(Scripted())
    at = post.clock.now() + 60
    post.clock.advance(7 * 86400)
    assert keys(post.look(Scripted((event("a", at),)))) == ["a"]


def test_the_place_is_remembered_only_after_the_messages_are_safe(post: Post) -> None:
    post.look(Scripted())
    before = post.path.read_bytes()
    post.refuse = StoreFailed("the disk is gone")
    with pytest.raises(StoreFailed):
        post.look(Scripted((event("a", post.clock.now()),)))
    assert post.path.read_bytes() == before
    post.refuse = None
    assert keys(post.look(Scripted((event("a", post.clock.now()),)))) == ["a"]


def test_the_steps_before_a_failure_count(post: Post) -> None:
    now = post.clock.now()
    with pytest.raises(WatchFailed):
        post.look(Scripted((event("a", now),), (event("b", now),), fails=True))
    watcher = Scripted((event("a", now), event("b", now)))
    assert not post.look(watcher)
    assert watcher.looks[0].cursor == {"step": 2}


def test_a_watcher_that_fails_looks_less_often_and_never_too_early(post: Post) -> None:
    pauses: list[float] = []

    class Enough(Exception):
        pass

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        post.clock.advance(seconds)
        if len(pauses) == 8:
            raise Enough
        watcher.fails = len(pauses) != 6

    watcher = Scripted(fails=True)
    with pytest.raises(Enough):
        post.loop(watcher, 10).run(sleep=sleep)
    assert pauses == [50, 50, 80, 160, 320, 640, 10, 50]


def test_a_memory_that_cannot_be_read_is_a_clear_error(post: Post) -> None:
    post.path.parent.mkdir()
    post.path.write_text("{")
    with pytest.raises(StoreFailed, match="remove it to watch from now on"):
        post.look(Scripted())


def rest(path: Path, clock: Any) -> None:
    """Let a file look as if it had not changed for two seconds."""
    os.utime(path, (clock.now() - 2, clock.now() - 2))


class Folder:
    """A folder that is watched."""

    def __init__(self, post: Post, place: Path, **options: Any) -> None:
        self.post = post
        self.place = place
        place.mkdir(exist_ok=True)
        self.options = {"folders": [place.name], **options}

    def write(self, name: str, text: str = "x") -> Path:
        path = self.place / name
        path.write_text(text)
        rest(path, self.post.clock)
        return path

    def look(self) -> list[str]:
        self.post.clock.advance(10)
        found = self.post.look(files_watcher(self.options, self.place.parent, {}))
        return [f"{each.body['change']} {Path(each.body['file']).name}" for each in found]


@pytest.fixture
def folder(post: Post, tmp_path: Path) -> Folder:
    return Folder(post, tmp_path / "inbox")


def test_files_that_come_change_and_go_are_told(folder: Folder) -> None:
    folder.options["changes"] = ["created", "changed", "removed"]
    folder.write("before.md")
    assert folder.look() == []
    folder.write("new.md")
    assert folder.look() == ["created new.md"]
    folder.write("before.md", "more")
    assert folder.look() == ["changed before.md"]
    (folder.place / "new.md").unlink()
    assert folder.look() == ["removed new.md"]
    assert folder.look() == []
    folder.write("new.md")
    assert folder.look() == ["created new.md"]


def test_a_file_is_told_when_it_rests(folder: Folder) -> None:
    folder.look()
    path = folder.write("big.md")
    os.utime(path, (folder.post.clock.now() + 10, folder.post.clock.now() + 10))
    assert folder.look() == []
    assert folder.look() == ["created big.md"]
    os.utime(path, (folder.post.clock.now() + 10, folder.post.clock.now() + 10))
    assert folder.look() == []
    assert folder.look() == ["changed big.md"]


def test_only_names_that_fit_are_told_and_links_and_hidden_files_are_not(folder: Folder) -> None:
    folder.options["pattern"] = "*.md"
    folder.look()
    for name in ("a.txt", ".hidden.md"):
        folder.write(name)
    (folder.place / "link.md").symlink_to("/etc/passwd")
    (folder.place / "deeper").mkdir()
    folder.write("deeper/b.md")
    assert folder.look() == ["created b.md"]


def test_the_name_of_a_file_is_harmless_in_the_goal(folder: Folder) -> None:
    folder.look()
    folder.write("$(reboot) {path}.md")
    folder.look()
    [told] = folder.post.sent
    assert "$(" not in told.body["goal"] and told.body["goal"].startswith("See to the file /")


def test_a_folder_that_is_not_there_is_a_clear_error(folder: Folder) -> None:
    folder.place.rmdir()
    with pytest.raises(WatchFailed, match="is no folder"):
        folder.look()


def command(tmp_path: Path, program: str) -> CommandWatcher[Event]:
    script = tmp_path / "watch.py"
    script.write_text(program)
    options = {"command": [sys.executable, str(script)]}
    return command_watcher(options, tmp_path, {"PATH": "/usr/bin", "WANTED": "yes"})


LINES = """
import json, os, sys
assert os.environ["WANTED"] == "yes" and "HOME" not in os.environ
place = json.loads(os.environ["WATCH_CURSOR"]).get("place", 0)
for number in range(place, place + 2):
    print(json.dumps({"key": str(number), "type": "user_goal", "body": {"goal": f"goal {number}"}}), flush=True)
print(json.dumps({"cursor": {"place": place + 2}}))
"""


def test_any_command_that_prints_json_lines_is_a_watcher(post: Post, tmp_path: Path) -> None:
    watcher = command(tmp_path, LINES)
    assert keys(post.look(watcher)) == ["0", "1"]
    assert keys(post.look(watcher)) == ["2", "3"]


def test_a_line_is_sent_before_the_command_ends(post: Post, tmp_path: Path) -> None:
    waiting = tmp_path / "go"
    program = f"""
import json, os, time
print(json.dumps({{"key": "a", "type": "user_goal", "body": {{"goal": "x"}}}}), flush=True)
while not os.path.exists({str(waiting)!r}):
    time.sleep(0.01)
"""
    watcher = command(tmp_path, program)
    usual = post.send

    def send(events: Any) -> None:
        usual(events)
        waiting.touch()

    post.send = send  # type: ignore[method-assign]  # what tells the command to end is that its line was sent
    assert keys(post.look(watcher)) == ["a"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit(3)", "ended with 3"),
        ("print('hello')", "no event"),
        ('print(\'{"key": "a"}\')', "missing required field `type`"),
        ("print('[1]')", "no event"),
        ("print('x' * (2 << 20))", "at most"),
    ],
)
def test_a_command_that_fails_or_prints_something_else_is_a_clear_error(
    post: Post, tmp_path: Path, program: str, reason: str
) -> None:
    with pytest.raises(WatchFailed, match=reason):
        post.look(command(tmp_path, program))


def test_a_command_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="nowhere is not there"):
        command_watcher({"command": ["nowhere"]}, tmp_path, {})


def test_text_is_harmless_and_short() -> None:
    assert one_line("a\tb\nc\x1b[0m\u202e") == "a b c［0m"
    assert one_line("key: value") == "key： value"
    assert one_line("https://example.com/x") == "https://example.com/x"
    assert many_lines("a\r\nb`$HOME`") == "a\nb｀＄HOME｀"
    assert not set(many_lines("`$\\;|&<>(){}[]!#*\"'%")) & set("`$\\;|&<>(){}[]!#*\"'%")
    assert len(one_line("x" * 10_000)) == LONGEST
    assert one_line(None) == ""
    assert json.loads(json.dumps(one_line("\ud800x"))) == "x"
