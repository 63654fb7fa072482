"""What GitHub's answers mean: each item as somebody's doing, and each doing as the message it makes.

All text is made harmless on the way; what is compared with the settings is the text as GitHub has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pabal.ignite.watchers.contract import Event
from pabal.ignite.watchers.sanitising import many_lines, one_line
from pabal.jsontext import Json

_REMARKS = {"comments": "issue_comment", "review_comments": "review_comment", "reviews": "review_submitted"}
_url = re.compile(r"https?://[A-Za-z0-9.:/_#?=&%~-]{1,500}", re.ASCII).fullmatch


class Rules(NamedTuple):
    """What asks for work, and who may."""

    mention: str
    labels: frozenset[str]
    allowed: frozenset[str]
    ignore_bots: bool


class Item(NamedTuple):
    """Something that somebody did, as GitHub tells it."""

    key: str
    kind: str
    repository: str
    number: int
    author: str
    author_type: str
    at: str
    title: str = ""
    text: str = ""
    url: str = ""
    label: str = ""
    comment: int = 0


def items_of(kind: str, repository: str, raw: Mapping[str, Any]) -> Iterator[Item]:
    """Read one element of a list; nothing if it is none that is watched."""
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
        url=str(raw.get("html_url") or issue.get("html_url") or ""),
    )
    if kind == "labels":
        if raw.get("event") == "labeled":
            label, text = str((raw.get("label") or {}).get("name", "")), str(issue.get("body") or "")
            yield item._replace(key=f"label_{raw['id']}", kind="issue_labeled", label=label, text=text)
    elif kind == "issues":
        name = "pull_request" if "pull_request" in raw else "issue"
        yield item._replace(key=f"{name}_{repository}#{item.number}", kind=f"{name}_opened")
    else:
        name = _REMARKS[kind]
        yield item._replace(key=f"{name}_{raw['id']}", kind=name, comment=int(raw["id"]))


def event_of(item: Item, rules: Rules) -> Event | None:
    """Return the message that an item makes; None if nobody wants to know."""
    if rules.ignore_bots and (item.author_type == "Bot" or item.author.endswith("[bot]")):
        return None
    trigger = _trigger(item, rules)
    if item.label and not trigger:
        return None
    body = _event_body(item) if not trigger else _task_body(item, trigger)
    return Event(
        key=item.key,
        type="github_task" if trigger else "github_event",
        body=body,
        at=_instant(item.at),
        priority="high" if trigger else "normal",
        thread_id=f"{item.repository}#{item.number}",
        repository=item.repository,
        issue=str(item.number),
    )


def _trigger(item: Item, rules: Rules) -> str:
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
        "issue_body": "" if item.comment else many_lines(item.text),
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


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
