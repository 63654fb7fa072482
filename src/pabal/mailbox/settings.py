"""The settings of a mailbox, and the part of them that its clients must know."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from pabal import jsontext
from pabal.errors import StoreFailed
from pabal.filesystem import read_plain
from pabal.policy.policy import Policy

LAYOUT = "mailbox.json"  # in the root of a mailbox, written by its manager


class MailboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Folders are names under the mailbox's root; times are in seconds."""

    requests: str = "requests"
    processing: str = "processing"
    responses: str = "responses"
    dead: str = "dead"
    wakeups: str = "bells"
    archive: str = "archive"
    stale_seconds: float = 30.0  # a claimed file that still cannot be parsed then is moved to dead/
    answers_kept: float = 300.0
    watched: bool = True  # inotify reports arrivals; else the folder is polled
    poll_seconds: float = 1.0  # how often, where inotify is off or missing
    dead_kept: float = 7 * 86400.0
    oldest_request: float = 300.0  # one that was interrupted or sent again later may have been run, and is forgotten
    longest_wait: float = 60.0  # the longest long poll of a consume
    max_bytes: int = 80 << 20  # of a request file: the largest message with its envelope
    max_waiting_per_client: int = 10_000
    queues: frozenset[str] | None = None  # the only queues that commands may name; None: any
    clients: dict[str, int] | None = None  # clientId to uid, each client a user of its own; None: all are the manager's
    group: int | None = None  # the group of all clients, where each is a user of its own
    new_queue: Policy = Policy()  # of a queue that a client creates
    heartbeat: str = ""  # the path of the manager's heartbeat, for clients that get no answer


_Folder = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,99}$")]


class Layout(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The content of `mailbox.json`: where clients write requests and find answers, and where the heartbeat is."""

    requests_dir: _Folder = "requests"
    responses_dir: _Folder = "responses"
    heartbeat: str = ""


def layout_of(settings: MailboxSettings) -> Layout:
    return Layout(requests_dir=settings.requests, responses_dir=settings.responses, heartbeat=settings.heartbeat)


def read_layout(root: Path) -> Layout:
    """Return the layout of a mailbox; without the file, as in a mailbox that no manager has served, the default."""
    path = root / LAYOUT
    try:
        return jsontext.decode_as(read_plain(path), Layout)
    except (FileNotFoundError, NotADirectoryError):
        return Layout()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise StoreFailed(f"{path} cannot be read ({exc}): start the manager again, which writes it") from exc
