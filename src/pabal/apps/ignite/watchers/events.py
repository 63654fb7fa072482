"""The events of a team's watchers: what GitHub's items and changed files say to agents.

All text from outside is sanitised on the way. Settings are compared with the text as GitHub has it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pabal.jsontext import Json
from pabal.watchers import Event
from pabal.watchers.files import FileChange

LONGEST = 256  # characters of a title or a name
LONGEST_TEXT = 8000  # characters of a text of several lines
_REMARKS = {"comments": "issue_comment", "review_comments": "review_comment", "reviews": "review_submitted"}
_WIDE = 0xFEE0  # from an ASCII character to its full-width form
_FORMS = {ord(char): ord(char) + _WIDE for char in "`$\\;|&<>(){}[]!#*\"'%"}
_CUT = "…"
_colon = re.compile(r":(?=\s|$)")
_url = re.compile(r"https?://[A-Za-z0-9.:/_#?=&%~-]{1,500}", re.ASCII).fullmatch


class Rules(NamedTuple):
    """Which items ask for work, and which users may ask; no `allowed` users means every user."""

    mention: str
    labels: frozenset[str]
    allowed: frozenset[str]
    ignore_bots: bool


class Item(NamedTuple):
    """Something that a user did on GitHub."""

    key: str
    kind: str
    repository: str
    number: int
    author: str
    author_type: str
    at: str
    title: str = ""
    text: str = ""
    issue_text: str = ""  # of the issue that a comment is about
    url: str = ""
    label: str = ""
    comment: int = 0


def github_events(kind: str, repository: str, raw: Mapping[str, Any], rules: Rules) -> Iterator[Event]:
    """Return the event of one item of a GitHub list, if there is one."""
    item = _item(kind, repository, raw)
    event = _github_event(item, rules) if item is not None else None
    if event is not None:
        yield event


def asks_for_work(kind: str, raw: Mapping[str, Any], rules: Rules) -> bool:
    """Return whether an item of a GitHub list becomes a task."""
    item = _item(kind, "", raw)
    return item is not None and not _is_ignored(item, rules) and bool(_trigger(item, rules))


def file_event(change: FileChange, *, type: str, goal: str, priority: str) -> Event:
    """Return the event of a changed file; `{path}`, `{name}` and `{change}` in the goal are filled in."""
    path = change.path
    words = {"path": one_line(path, 4096), "name": one_line(os.path.basename(path)), "change": change.change}
    for name, word in words.items():
        goal = goal.replace(f"{{{name}}}", word)
    # The goal may be pasted anywhere, so it is sanitised. The path must be the real one to be of use.
    file = path if path.isprintable() else words["path"]
    body: dict[str, Json] = {"goal": goal, "file": file, "change": change.change}
    return Event(key=change.key, type=type, body=body, at=change.at, priority=priority)


def one_line(text: object, limit: int = LONGEST) -> str:
    """Return a title or a name as one sanitised line."""
    return _sanitised(" ".join(str(text or "").split()), limit)


def many_lines(text: object, limit: int = LONGEST_TEXT) -> str:
    """Return a text sanitised, line by line."""
    return _sanitised("\n".join(str(text or "").splitlines()), limit)


def _sanitised(text: str, limit: int) -> str:
    """Remove control characters, give characters that a shell or YAML acts on their full-width form, cut the rest.

    Our own files need none of this. It is for agents that paste text into commands.
    """
    text = "".join(char for char in text if char.isprintable() or char == "\n")
    text = _colon.sub(chr(ord(":") + _WIDE), text.translate(_FORMS))
    return text if len(text) <= limit else text[: limit - 1] + _CUT


def _item(kind: str, repository: str, raw: Mapping[str, Any]) -> Item | None:
    """Read one element of a list; None if it is of a kind that is not watched."""
    user = raw.get("actor") or raw.get("user") or {}
    issue = raw if kind == "issues" else raw.get("issue") or {}
    item = Item(
        key="",
        kind="",
        repository=repository,
        number=_number(raw, issue),
        author=str(user.get("login", "")),
        author_type=str(user.get("type", "")),
        at=str(raw.get("submitted_at") or raw.get("created_at") or ""),
        title=str(issue.get("title") or ""),
        text=str(raw.get("body") or ""),
        issue_text=str(issue.get("body") or ""),
        url=str(raw.get("html_url") or issue.get("html_url") or ""),
    )
    if kind == "labels":
        if raw.get("event") != "labeled":
            return None
        label, text = str((raw.get("label") or {}).get("name", "")), str(issue.get("body") or "")
        return item._replace(key=f"label_{raw['id']}", kind="issue_labeled", label=label, text=text)
    if kind == "issues":
        name = "pull_request" if "pull_request" in raw else "issue"
        return item._replace(key=f"{name}_{repository}#{item.number}", kind=f"{name}_opened")
    name = _REMARKS[kind]
    return item._replace(key=f"{name}_{raw['id']}", kind=name, comment=int(raw["id"]))


def _github_event(item: Item, rules: Rules) -> Event | None:
    if _is_ignored(item, rules):
        return None
    trigger = _trigger(item, rules)
    if item.label and not trigger:
        return None
    return Event(
        key=item.key,
        type="github_task" if trigger else "github_event",
        body=_task_body(item, trigger) if trigger else _event_body(item),
        at=datetime.fromisoformat(item.at).timestamp() if item.at else 0.0,
        priority="high" if trigger else "normal",
        thread_id=f"{item.repository}#{item.number}",
        repository=item.repository,
        issue=str(item.number),
    )


def _is_ignored(item: Item, rules: Rules) -> bool:
    return rules.ignore_bots and (item.author_type == "Bot" or item.author.endswith("[bot]"))


def _trigger(item: Item, rules: Rules) -> str:
    """Return what in an item asks for work; empty if nothing does."""
    if rules.allowed and item.author.lower() not in rules.allowed:
        return ""
    if item.label:
        return f"label {one_line(item.label)}" if item.label in rules.labels else ""
    pattern = rf"(?<![\w@]){re.escape(rules.mention)}(?![\w-])"
    return "mention" if rules.mention and re.search(pattern, item.text, re.IGNORECASE) else ""


def _event_body(item: Item) -> dict[str, Json]:
    body: dict[str, Json] = {
        "event_type": item.kind,
        "repository": item.repository,
        "issue_number": item.number,
        "issue_title": one_line(item.title),
        "author": one_line(item.author),
        "author_type": one_line(item.author_type),
        "body": many_lines(item.text),
        "url": _link(item.url),
    }
    return {**body, "comment_id": item.comment} if item.comment else body


def _task_body(item: Item, trigger: str) -> dict[str, Json]:
    return {
        "trigger": trigger,
        "event_type": item.kind,
        "repository": item.repository,
        "issue_number": item.number,
        "issue_title": one_line(item.title),
        "issue_body": many_lines(item.issue_text),
        "trigger_comment": many_lines(item.text) if item.comment else "",
        "requested_by": one_line(item.author),
        "url": _link(item.url),
    }


def _link(url: str) -> str:
    return url if _url(url) else ""


def _number(raw: Mapping[str, Any], issue: Mapping[str, Any]) -> int:
    if "number" in issue:
        return int(issue["number"])
    address = str(raw.get("issue_url") or raw.get("pull_request_url") or "")
    return int(address.rpartition("/")[2] or 0)
