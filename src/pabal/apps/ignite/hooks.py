"""The hooks of Claude Code and Codex: what a session of an agent is told, when, and in the form that its client reads.

Both clients run a command at certain moments of a session, with a JSON document on stdin. Each call is a sign of life.
At the start of a session and when a prompt is submitted the command prints the mail in hand as further context. When a
turn ends (`Stop`) it refuses the end, once for each message, so that the session goes on with its mail.

An idle session of Claude Code is woken by a command that waits in the background (`asyncRewake`): it ends with 2 as
soon as there is mail, and its stderr becomes the next prompt. Of an agent's waiting commands only the newest one stays:
an agent has one session.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pabal import jsontext
from pabal.apps.ignite.readers import MailWatch, beat, delivered
from pabal.apps.ignite.workspace import HOOKS, Held, Workspace
from pabal.codecs.mime.codec import priority_text
from pabal.durable import replace_whole
from pabal.filesystem import locked, touch
from pabal.names import shown_name

REWAKE = "--rewake"
_CONTEXT = ("UserPromptSubmit", "SessionStart")  # events whose answer may add context
_REWOKEN = 2  # the exit status that wakes a session of Claude Code


_type = re.compile(r"[A-Za-z0-9_.-]{1,60}", re.ASCII).fullmatch


class Answer(NamedTuple):
    """What the command of a hook prints, and its exit status."""

    document: dict[str, Any] | None = None  # on stdout
    text: str = ""  # on stderr
    status: int = 0


class _Told(msgspec.Struct):
    """The tokens of messages that an agent is woken for, and of those that its session was told of."""

    news: list[str] = []
    told: list[str] = []


def answer(workspace: Workspace, agent: str, event: str, *, wait: float = 0.0) -> Answer:
    """Return the answer to an event of a session of an agent. At `Stop`, wait so long for mail."""
    beat(workspace, agent)
    if event in _CONTEXT:
        with _record(workspace.root, agent) as record:
            text = _text(agent, _delivered(workspace, agent, record))
        return Answer({"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}) if text else Answer()
    if event == "Stop":
        with MailWatch(workspace, agent) as watch:
            found = watch.until_found(lambda: _claim(workspace, agent), time.monotonic() + wait)
        text = _text(agent, found)
        return Answer({"decision": "block", "reason": text}) if text else Answer()
    return Answer()  # other events, such as the end of a tool call, are signs of life


def rewake(workspace: Workspace, agent: str) -> Answer:
    """Wait for mail in the background of a session; end if its client ends, or if another command waits.

    Its start tells the monitor that the session is back. Waiting is no sign of life: a message that the session was
    told of and did not finish is told again.
    """
    waiter = waiter_path(workspace.root, agent)
    replace_whole(waiter, str(os.getpid()).encode(), synced=False)
    parent = os.getppid()

    def is_needed() -> bool:
        with suppress(OSError):
            return waiter.read_text() == str(os.getpid()) and os.getppid() == parent
        return False

    with MailWatch(workspace, agent) as watch:
        beat(workspace, agent)
        found = watch.until_found(lambda: _claim(workspace, agent, announced=True), float("inf"), is_needed)
    return Answer(text=_text(agent, found), status=_REWOKEN) if found else Answer()


def waiter_path(root: Path, agent: str) -> Path:
    return root / HOOKS / f"{agent}.waiter"


def is_awaited(root: Path, agent: str) -> bool:
    """Return whether a session of an agent waits for mail in the background."""
    with suppress(OSError, ValueError):
        pid = int(waiter_path(root, agent).read_text())
        return REWAKE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def announce(root: Path, agent: str, token: str) -> None:
    """Let the session of an agent be told of a message, again if it was told before."""
    with _record(root, agent) as record:
        record.news = [*[each for each in record.news if each != token][-9:], token]
        record.told = [each for each in record.told if each != token]
    path = root / HOOKS / agent
    touch(path)
    os.utime(path)


def _delivered(workspace: Workspace, agent: str, record: _Told) -> list[Held]:
    """Return the messages in hand for which the agent is woken. Any other may still be refused, or given back."""
    test, held = workspace.held_test(agent), workspace.held(agent)
    known = [each.receipt.token for each in delivered(workspace, agent)] + record.news
    return [each for each in [*held, *([test] if test is not None else [])] if each.receipt.token in known]


def _claim(workspace: Workspace, agent: str, *, announced: bool = False) -> list[Held]:
    """Return the messages that the session was not told of; they count as told then.

    With `announced`, only those that the monitor announces to the hooks: it typed any other into the pane.
    """
    with _record(workspace.root, agent) as record:
        current = _delivered(workspace, agent, record)
        found = [each for each in current if each.receipt.token not in record.told]
        if announced:
            found = [each for each in found if each.receipt.token in record.news]
        tokens = [each.receipt.token for each in current]
        record.told = [each for each in record.told if each in tokens] + [each.receipt.token for each in found]
    return found


def _text(agent: str, held: Sequence[Held]) -> str:
    """Return what a session is told: where the messages are. Their text is never part of it."""
    lines = []
    for each in held:
        message, id = each.message, each.message.id
        type = message.type if _type(message.type) else "message"
        lines += [
            f"New message for {shown_name(agent)}: {each.path} ({type} from {shown_name(message.sender) or 'nobody'},"
            f" priority {priority_text(message.priority)}).",
            f"Read it with `pabal ignite read {id}` and do what it asks. Then run `pabal ignite done {id}`,"
            f" `pabal ignite reply {id} TEXT` to answer too, or `pabal ignite fail {id} --reason WHY` if you cannot.",
        ]
    return "\n".join(lines)


@contextmanager
def _record(root: Path, agent: str) -> Iterator[_Told]:
    """Change what an agent was told, with the lock of its file held."""
    with locked(root / HOOKS / f"{agent}.told") as fd:
        try:
            record = jsontext.decode_as(os.pread(fd, 1 << 16, 0), _Told)
        except msgspec.DecodeError:
            record = _Told()
        before = msgspec.json.encode(record)
        yield record
        data = msgspec.json.encode(record)
        if data != before:
            os.ftruncate(fd, 0)
            os.pwrite(fd, data, 0)
