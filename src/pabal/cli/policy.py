"""`pabal policy`: show and change the policy of a queue."""

from __future__ import annotations

from typing import Any

import click

from pabal import jsontext
from pabal.cli.session import command, help_if_alone, json_option, known, opened, queue_argument, url_option
from pabal.cli.text import json_text
from pabal.cli.values import loose_json, pair
from pabal.cli.verbs import Verb, ask, mq_verb, queue_needed
from pabal.errors import InvalidInput, InvalidPolicy, NotJson
from pabal.jsontext import Json
from pabal.policy.policy import PAUSED, Policy, document_of, policy_from
from pabal.queues.queue import Queue

_LARGEST = 1 << 20

Document = dict[str, Any]


file_option = click.option(
    "--file", "path", metavar="PATH", help="A policy document, - for stdin; what it leaves out is default."
)
set_option = click.option(
    "--set", "changes", type=pair, multiple=True, metavar="KEY=VALUE", help="Change one value; may be repeated."
)


@click.group("policy", invoke_without_command=True)
@url_option()
@click.pass_context
def policy(ctx: click.Context) -> None:
    """Show or change what a queue does with its messages."""
    help_if_alone(ctx)


@command("show")
@queue_argument
@json_option
def show(queue: str, as_json: bool) -> None:
    """Print the policy in force.

    It is printed as the document that `pabal policy set --file` takes.

    \b
    Example:
      pabal policy show jobs > policy.json
    """
    with opened() as mq:
        document = document_of(known(mq, queue).policy)
    click.echo(json_text(document) if as_json else jsontext.pretty(document).decode(), nl=as_json)


@command("set")
@queue_argument
@file_option
@set_option
def set_policy(queue: str, path: str | None, changes: tuple[tuple[str, str], ...]) -> None:
    """Give QUEUE a policy and print what changed.

    --set changes one value of the policy in force, or of --file if both are given. Running consumers follow within a
    second. A queue need not exist yet.

    \b
    Examples:
      pabal policy set jobs --set retry.limit=3 --set visibilityTimeoutSec=60
      pabal policy set jobs --set dlq.queue=jobs-dead
      pabal policy set jobs --file policy.json
    """
    if path is None and not changes:
        raise click.UsageError("give --file PATH or --set KEY=VALUE")
    given = _document(path) if path is not None else None
    with opened(create=True) as mq:
        target = mq.queue(queue)
        before = _before(target, replaced=given is not None)
        after = before if given is None else given
        for key, text in changes:
            after = _changed(after, key.split("."), key, text)
        wanted = policy_from(after)
        target.configure(wanted)
    lines = _differences(before, document_of(wanted))
    click.echo("\n".join(lines) if lines else f"{queue}: nothing changed")


policy.add_command(show)
policy.add_command(set_policy)


@mq_verb("get-policy")
@queue_needed
def mq_get_policy(queue: str, as_json: bool) -> None:
    """Print the policy of a queue.

    It is printed as the document that `pabal mq set-policy --file` takes.

    \b
    Example:
      pabal mq get-policy --queue telemetry > policy.json

    --json: queue, policy.
    """
    data = ask("get_policy", {"queue": queue})
    click.echo(json_text(data) if as_json else jsontext.pretty(data["policy"]).decode(), nl=as_json)


@mq_verb("set-policy")
@queue_needed
@file_option
@set_option
def mq_set_policy(queue: str, path: str | None, changes: tuple[tuple[str, str], ...], as_json: bool) -> None:
    """Give a queue a policy and print what changed.

    --set changes one value of the policy in force, or of --file if both are given. A queue that the configuration of
    the manager names gets the policy of the configuration again when the manager starts or reloads.

    \b
    Example:
      pabal mq set-policy --queue telemetry --set retry.limit=3

    --json: queue, policy.
    """
    if path is None and not changes:
        raise click.UsageError("give --file PATH or --set KEY=VALUE")
    before = ask("get_policy", {"queue": queue})["policy"]
    after = before if path is None else _document(path)
    for key, text in changes:
        after = _changed(after, key.split("."), key, text)
    data = ask("set_policy", {"queue": queue, "policy": after, "replace": True})
    lines = _differences(before, data["policy"])
    click.echo(json_text(data) if as_json else "\n".join(lines) or f"{queue}: nothing changed")


POLICY_VERBS = (Verb(mq=mq_get_policy), Verb(mq=mq_set_policy))


def _document(path: str) -> Document:
    try:
        with click.open_file(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as exc:
        raise click.FileError(path, exc.strerror) from exc
    expected = f"{'stdin' if path == '-' else path}: a policy is a JSON object of at most {_LARGEST} bytes"
    try:
        document = jsontext.read(data) if len(data) <= _LARGEST else None
    except InvalidInput as exc:
        raise InvalidPolicy(f"{expected}; {'it is empty' if not data.strip() else f'{exc.code}: {exc}'}") from exc
    if not isinstance(document, dict):
        raise InvalidPolicy(expected)
    return document


def _before(queue: Queue, *, replaced: bool) -> Document:
    """Return the policy in force; if it cannot be read, the stored document, so that it can be corrected.

    If not even that can be read, nothing, where it is `replaced` as a whole.
    """
    try:
        return document_of(queue.policy)
    except InvalidPolicy as exc:
        try:
            return {name: value for name, value in (queue.store.settings(queue.name) or {}).items() if name != PAUSED}
        except InvalidPolicy:
            if replaced:
                return {}
            raise exc from None


def _changed(document: Document, steps: list[str], key: str, text: str) -> Document:
    """Return the document with one value replaced, however deep."""
    name, *deeper = steps
    if not deeper:
        return {**document, name: _value(key, text)}
    inner = document.get(name)
    if inner is None and name in document_of(Policy()):
        inner = {}
    if not isinstance(inner, dict):
        raise InvalidPolicy(f"no such value in a policy: {key}")
    return {**document, name: _changed(inner, deeper, key, text)}


def _value(key: str, text: str) -> Json:
    try:
        return loose_json(text)
    except NotJson as exc:
        raise InvalidPolicy(
            f"{key}: expected a JSON value, and for seconds and bytes a number alone, as in 300; found {text!r:.40}"
        ) from exc


def _differences(before: Document, after: Document, prefix: str = "") -> list[str]:
    lines = []
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            lines += _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            lines.append(f"{prefix}{key}: {json_text(old)} -> {json_text(new)}")
    return lines
