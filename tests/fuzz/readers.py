"""The table of readers: how each is called, and the only errors that may come out of it.

A reader gets bytes. It returns a short text about what it read, which tells new behaviour from old, or raises one of
its documented errors. Where a value can be written again, the reader compares it.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import fastjsonschema
import msgspec
import yaml as pyyaml
from click import BadParameter

from pabal import jsontext
from pabal.apps.chat import events as chat_events
from pabal.apps.chat.gateway import bodies as frames
from pabal.apps.chat.gateway.answers import value_of
from pabal.apps.chat.gateway.auth import Tokens
from pabal.apps.chat.gateway.metadata import without_metadata
from pabal.apps.chat.ledger.names import checked_name, name_key
from pabal.apps.chat.ledger.search import parts_of, terms_of
from pabal.apps.chat.ledger.statements import read_cursor
from pabal.apps.ignite import hook_settings
from pabal.apps.ignite import types as ignite_types
from pabal.apps.ignite.archive import Query, words_of
from pabal.apps.ignite.reservations import check_pattern, overlap
from pabal.apps.ignite.team import read_team
from pabal.apps.ignite.watchers.events import Rules, github_events
from pabal.apps.ignite.watchers.settings import _event_of_line, read_settings
from pabal.apps.kingdom import documents
from pabal.apps.kingdom.chamberlain import settings as chamberlain_settings
from pabal.apps.kingdom.codec import KingdomCodec
from pabal.apps.kingdom.config import King, System, parse_config
from pabal.apps.kingdom.envoy import settings as envoy_settings
from pabal.apps.kingdom.envoy.blocks import press_of
from pabal.apps.kingdom.envoy.inbound import Inbound
from pabal.apps.kingdom.health import read_health
from pabal.apps.kingdom.journal import read_journal
from pabal.apps.kingdom.manifests import load
from pabal.apps.kingdom.sentinel import events as sentinel_events
from pabal.apps.kingdom.sentinel import settings as sentinel_settings
from pabal.cli import values
from pabal.codecs import yaml
from pabal.codecs.json import JsonCodec
from pabal.codecs.mime import MimeCodec
from pabal.codecs.mime.document import as_json
from pabal.connect import SCHEMES, connect_topics, database_path, parse_url
from pabal.errors import (
    DecodeError,
    InvalidConfig,
    InvalidInput,
    InvalidName,
    InvalidPolicy,
    PabalError,
    StoreFailed,
    StoreMissing,
    WatchFailed,
)
from pabal.mailbox import calls
from pabal.mailbox.client import read_answer, read_data
from pabal.mailbox.protocol import Problem, answer_of, read_batch, refusal_of
from pabal.manager.config import read_config
from pabal.mcp.tools import MAIL_TOOLS, QUEUE_TOOLS
from pabal.message import Message
from pabal.names import ascii_name, check_id, check_name, shown_name, shown_url
from pabal.policy.policy import document_of, policy_from
from pabal.policy.validation import checker, rule_checker
from pabal.queues import cron
from pabal.runtime.heartbeat import read_pulse
from pabal.runtime.origins import Origins
from pabal.runtime.state_file import DAMAGED, read_state
from pabal.sql.connection import connect
from pabal.sql.pages import PageFile
from pabal.sql.postgres_link import for_libpq, place_of
from pabal.store import Receipt
from pabal.stores.files import Names
from pabal.stores.layout import admits
from pabal.stores.original import Folders, read_tree
from pabal.stores.sqlite import SqliteStore
from pabal.testing import ManualClock
from pabal.topic_store import check_topic
from pabal.topics.browse import read_places, write_places
from pabal.watchers.contract import Look
from pabal.watchers.github import NotificationWatcher, RepositoryWatcher
from pabal.watchers.jira import JiraWatcher
from tests.stores.test_seed_database import MORE, SCHEMA

CORPUS = Path(__file__).parent / "corpus"


class Reader(NamedTuple):
    """`read` raises nothing but `errors`. `words` are those of its format. `share`: inputs for each one of others."""

    read: Callable[[bytes], object]
    errors: tuple[type[BaseException], ...]
    words: tuple[bytes, ...] = ()
    share: float = 1.0


def words(text: str) -> tuple[bytes, ...]:
    return tuple(word.encode() for word in text.split())


def text_of(data: bytes) -> str:
    """Return text as the command line, a file name or JSON may bring it: with lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def json_value(data: bytes) -> Any:
    """Return a JSON value out of any bytes: of readers that get values, not text."""
    try:
        return jsontext.read(data)
    except InvalidInput:
        return text_of(data)


def form(value: object, depth: int = 2) -> str:
    """Return what kind of value this is, without its content."""
    if isinstance(value, dict):
        parts = [f"{key!s:.20}:{form(value[key], depth - 1)}" for key in sorted(value, key=str)[:8]] if depth else []
        return f"{{{','.join(parts)}}}"
    if isinstance(value, list | tuple):
        return f"[{form(value[0], depth - 1) if value and depth else ''}]"
    return type(value).__name__


# Messages


def _json(data: bytes) -> object:
    value = jsontext.read(data)
    assert jsontext.read(jsontext.encode(value)) == value
    jsontext.check(value)
    return form(value)


def _yaml(data: bytes) -> object:
    value = yaml.read(data)
    assert yaml.read(yaml.write(value).encode()) == value
    return form(value)


def _yaml_slow(data: bytes) -> object:
    return form(yaml.read(data[:2000], pyyaml.BaseLoader))


def _same_message(codec: Any, data: bytes) -> object:
    message: Message = codec.decode(data, id="given", at=1.5)
    again = codec.encode(message, queue="jobs")
    assert codec.decode(again, id="given", at=1.5) == message
    return f"{form(message.body)}{message.priority}{bool(message.group)}{len(message.headers)}"


def _envelope(data: bytes) -> object:
    return _same_message(JsonCodec(), data)


def _mime(data: bytes) -> object:
    return _same_message(MimeCodec(), data)


def _mime_shown(data: bytes) -> object:
    return form(as_json(data))


def _mime_restated(data: bytes) -> object:
    for state in ("ready", "inflight", "done", "dead", "corrupt"):
        data = MimeCodec().restate(data, state, at=1e9, reason="it\nfailed\ud800é" if state == "dead" else "")
    return len(data.split(b"\n"))


def _kingdom_document(data: bytes) -> object:
    codec = KingdomCodec()
    message = codec.decode(data, id="evt-1", at=1.5)
    for state in ("ready", "inflight", "done", "dead"):
        codec.decode(codec.restate(data, state, at=1e9), id="evt-1", at=1.5)
    return f"{message.type:.20}{message.priority}{message.target:.20}"


def _ignite_body(data: bytes) -> object:
    name, _, body = data.partition(b"\n")
    return form(msgspec.to_builtins(ignite_types.check(text_of(name), json_value(body))))


def _search(data: bytes) -> object:
    """A search is always one that FTS5 can read, and finds the text that it was made from."""
    text = text_of(data)
    query = Query(text)
    words = sqlite3.connect(":memory:")
    with closing(words):
        words.execute("create virtual table words using fts5 (body, tokenize = 'ascii')")
        words.execute("insert into words values (?)", (" ".join(words_of(text)),))
        assert words.execute("select 1 from words where words match ?", (query.expression,)).fetchone(), text
    assert query.matches(text)
    return query.expression.count('"')


def _patterns(data: bytes) -> object:
    one, _, other = text_of(data).partition("\n")
    one, other = check_pattern(one), check_pattern(other)
    assert overlap(one, one) and overlap(one, other) == overlap(other, one)
    return overlap(one, other)


# Configurations


class _Folder:
    """A file that is written for each input, and read through its path."""

    def __init__(self) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="pabal-fuzz-")

    def file(self, name: str, data: bytes) -> Path:
        path = Path(self._place.name, name)
        path.write_bytes(data)
        return path


_folder = _Folder()


def _client_settings(data: bytes) -> object:
    settings = hook_settings.read_settings(_folder.file("settings.json", data))
    wanted = hook_settings.wanted_hooks("claude", "pabal")
    with_ours = hook_settings.changed_settings(settings, wanted)
    assert hook_settings.changed_settings(with_ours, wanted) == with_ours
    without = hook_settings.changed_settings(with_ours, {})
    assert hook_settings.changed_settings(settings, {}) == without
    return sorted(with_ours)


def _script(data: bytes) -> object:
    name = text_of(data)
    written = ascii_name(name)
    if written != name:
        assert check_name(written) and ascii_name(shown_name(written)) == written
    return len(written) // 20


def _team(data: bytes) -> object:
    team = read_team(_folder.file("team.yaml", data))
    for name in team.watchers:
        read_settings(team, name)
    return f"{len(team.agents)}{len(team.watchers)}"


def _kingdom_config(data: bytes) -> object:
    found = []
    for kind in (System, King, envoy_settings.Settings, chamberlain_settings.Settings, sentinel_settings.Settings):
        try:
            parse_config(data, kind, "config")
            found.append(kind.__module__)
        except InvalidConfig as exc:
            found.append(str(exc)[:60])
    return "".join(found)


def _manifest(data: bytes) -> object:
    loaded = load(_folder.file("generals/gen-x.yaml", data).parent) if _made("generals") else None
    return None if loaded is None else f"{len(loaded.manifests)}{loaded.problems[:1]!s:.80}"


def _made(name: str) -> bool:
    os.makedirs(Path(_folder._place.name, name), exist_ok=True)
    return True


def _manager_json(data: bytes) -> object:
    return read_config(_folder.file("main_mq_configuration.json", data), folder=Path("/nowhere")).backend


def _manager_toml(data: bytes) -> object:
    return read_config(_folder.file("pabal.toml", data), folder=Path("/nowhere")).backend


def _state(data: bytes) -> object:
    return form(read_state(_folder.file("state.json", data), dict[str, int]))


def _role_files(data: bytes) -> object:
    path = _folder.file("role", data)
    journal, health = read_journal(path), read_health(path.parent, 1.7e9, 60.0)
    return f"{read_pulse(path, ManualClock()).state}{len(journal)}{form(health)}"


def _policy(data: bytes) -> object:
    value = json_value(data)
    policy = policy_from(value)
    assert policy_from(document_of(policy)) == policy
    bodies: list[Any] = [{}, {"a": "x", "temp": 1}, [], "x", None, b"x", value]
    for body in bodies:
        for check in (
            checker(policy.body_schema) if policy.body_schema is not None else None,
            rule_checker(policy.message_schema) if policy.message_schema is not None else None,
        ):
            try:
                if check is not None:
                    check(body)
            except InvalidInput:
                pass
    return form(document_of(policy))


def _cron(data: bytes) -> object:
    line, _, zone = text_of(data).partition("\n")
    cron.check(line, zone, "schedule")
    return (cron.last(line, zone, 1.7e9) is None, cron.following(line, zone, 1.7e9) is None)


# Names and addresses


def _names(data: bytes) -> object:
    text, found = text_of(data), []
    for check in (check_name, check_id, check_topic):
        try:
            check(text)
            found.append("y")
        except InvalidName:
            found.append("n")
    return "".join(found)


def _receipt(data: bytes) -> object:
    receipt = calls.receipt_of(text_of(data))
    assert Receipt.parse(str(receipt)) == receipt
    return "ok"


_tools = [(tool, fastjsonschema.compile(tool.document()["inputSchema"])) for tool in (*QUEUE_TOOLS, *MAIL_TOOLS)]


def _mcp_arguments(data: bytes) -> object:
    found, given = [], json_value(data)
    for tool, validate in _tools:
        arguments = given if isinstance(given, dict) else {"receipt": given, "queue": given, "to": given, "body": given}
        try:
            tool.read(arguments)
        except InvalidInput:
            continue
        # The schema that clients see refuses nothing that is read.
        validate({name: value for name, value in arguments.items() if value is not None})
        found.append(tool.name)
    return " ".join(found)


_grammars = [Names(native=native, extension=extension) for native in (True, False) for extension in (".json", ".mime")]


def _file_names(data: bytes) -> object:
    name, found = text_of(data)[:255], []
    for names in _grammars:
        slot = names.parse(name)
        found.append("" if slot is None else f"{slot.leased}{slot.own}{bool(slot.group)}{bool(slot.settled)}")
    return f"{found}{admits(name)}"


def _url(data: bytes) -> object:
    url, found = text_of(data), []
    assert "s3cr3t" not in shown_url(url).partition(":")[2] or "@" not in url
    for read in (parse_url, database_path, _topics_url, _postgres_url):
        try:
            found.append(form(read(url)))
        except (InvalidInput, StoreFailed, StoreMissing) as exc:
            said = str(exc).lower().replace(url.partition(":")[0].lower(), "")  # a scheme is shown, in small letters
            assert "s3cr3t" not in said or "@" not in url
            found.append(type(exc).__name__)
    return "".join(found)


def _topics_url(url: str) -> object:
    if url.startswith("kafka:"):
        return ""  # a client for each would be made
    connect_topics(f"{url.partition('/')[0]}/nowhere/{url.partition('/')[2]}", create=False).close()
    return ""


def _postgres_url(url: str) -> object:
    parse_url(url)
    rest, options = for_libpq(url, SCHEMES["postgresql"].options)
    return place_of(rest) if url.startswith("postgresql:") else options


def _origin(data: bytes) -> object:
    host, _, origin = text_of(data).partition("\n")
    made = Origins(hosts=("chat.example.org",), origins=("https://a.example",))
    allowed = made.host_allowed(host), made.origin_allowed(origin, host)
    Origins(origins=(origin,))
    return allowed


def _command_line(data: bytes) -> object:
    text, found = text_of(data), []
    for read in (values.duration, values.lasting, values.patience, values.priority, values.pair, values.loose_json):
        try:
            read(text)
            found.append("y")
        except (InvalidInput, BadParameter):
            found.append("n")
    return "".join(found)


# The mailbox

_CALLS = [call for call in vars(calls).values() if isinstance(call, calls.Call)]


def _requests(data: bytes) -> object:
    batch = read_batch(data)
    found = []
    for request in batch.requests:
        if isinstance(request, Problem):
            found.append(f"{type(request.error).__name__}{request.error!s:.30}")
            jsontext.encode(refusal_of(jsontext.storable(request.id), request.error))
            continue
        for call in _CALLS:
            try:
                asked = request.read(call.arguments)
                if isinstance(asked, calls.PublishArguments):
                    for draft in asked.drafts:
                        jsontext.encode(msgspec.to_builtins(calls.wire_draft(calls.draft_of(draft))))
                if isinstance(asked, calls.SettleArguments):
                    for each in asked.settlements:
                        calls.settlement_of(each)
                found.append(call.method)
            except InvalidInput as exc:
                found.append(type(exc).__name__)
        jsontext.encode(answer_of(request.id, {}))
    return "".join(found[:20])


def _answers(data: bytes) -> object:
    raw = read_answer(data)
    found = []
    for call in _CALLS:
        try:
            value = read_data(raw, call.result)
            if call is calls.LEASE:
                found += [form(calls.lease_of(each).message.body) for each in value]
            if call is calls.BROWSE:
                found += [form(calls.entry_of(each)) for each in value]
            found.append(call.method)
        except PabalError:
            found.append("n")
    return "".join(found)


# Services


class _Answer:
    """An answer of an HTTP server."""

    def __init__(self, content: bytes) -> None:
        self.content, self.url, self.headers = content, "https://127.0.0.1/x", dict[str, str]()
        self.status_code, self.links = 200, dict[str, dict[str, str]]()


class _Http:
    address = "https://127.0.0.1"

    def __init__(self, content: bytes) -> None:
        self._content = content

    def request(self, *_: object, **__: object) -> Any:
        return _Answer(self._content)

    def close(self) -> None: ...


_LOOK = Look(cursor={}, now=1.7e9, since=0.0, last=0.0)
_RULES = Rules("@me", frozenset({"do"}), frozenset(), True)


_repositories = {
    kind: RepositoryWatcher(
        "https://127.0.0.1",
        "",
        repositories=["a/b"],
        kinds=[kind, "reviews"],
        events=lambda kind, repository, item: github_events(kind, repository, item, _RULES),
    )
    for kind in ("issues", "comments", "review_comments", "labels")
}
_notices = NotificationWatcher(
    "https://127.0.0.1",
    "",
    per_page=10,
    mark_read=True,
    event=lambda item: sentinel_events.notification_event(sentinel_events.read_notification(item)),
)
_tickets = JiraWatcher("https://127.0.0.1", None, jql="x", page_size=10, event=sentinel_events.ticket_event)


def _github(data: bytes) -> object:
    found = []
    for watcher in _repositories.values():
        watcher._client._http = _Http(data)  # type: ignore[assignment]
        try:
            for page in watcher.poll(_LOOK):
                jsontext.encode(msgspec.to_builtins(page.events))
                found.append(str(len(page.events)))
        except WatchFailed as exc:
            found.append(str(exc)[:80])
    return "".join(found)


def _notifications(data: bytes) -> object:
    _notices._client._http = _Http(data)  # type: ignore[assignment]
    found = [f"{len(page.events)}{page.problems!s:.60}" for page in _notices.poll(_LOOK)]
    return "".join(found)


def _jira(data: bytes) -> object:
    _tickets._http = _Http(data)  # type: ignore[assignment]
    found = []
    for page in _tickets.poll(_LOOK):
        for event in page.events:
            jsontext.encode(msgspec.to_builtins(event))
        found.append(f"{len(page.events)}{page.problems!s:.60}")
    return "".join(found)


class _SlackHome:
    """Takes the events that messages become."""

    def emit(self, events: Any) -> Any:
        for event in events:
            documents.read(documents.Event, documents.document_of(event))
            jsontext.encode(documents.document_of(event))
        return [type("P", (), {"duplicate": False, "id": event.id}) for event in events]


class _Nothing:
    def all(self) -> list[Any]:
        return []

    def find(self, *_: object) -> None:
        return None


def _slack(data: bytes) -> object:
    value = json_value(data)
    if not isinstance(value, dict):
        return "no object"
    nothing: Any = _Nothing()
    home: Any = _SlackHome()
    return bool(Inbound(home, nothing, nothing, None).take(value))


def _slack_buttons(data: bytes) -> object:
    value = json_value(data)
    return "no object" if not isinstance(value, dict) else press_of(value) is not None


def _line(data: bytes) -> object:
    value = jsontext.read(data)
    found = []
    for read in (sentinel_events.line_event, _event_of_line):
        try:
            found.append(form(msgspec.to_builtins(read(value, 1.5))))
        except InvalidInput as exc:
            found.append(str(exc)[:40])
    return "".join(found)


# The chat

_FRAMES = (frames.Credentials, frames.NewRoom, frames.Joining, frames.Reading, frames.JoinRoom, frames.InRoom)
_tokens = Tokens(b"s" * 32, ManualClock())


def _frames(data: bytes) -> object:
    value, found = json_value(data), []
    for kind in (*_FRAMES, frames.SendMessage):
        try:
            value_of(value, kind)
            found.append("y")
        except PabalError as exc:
            found.append(str(exc)[:30])
    return "".join(found)


def _chat_events(data: bytes) -> object:
    found = []
    for read in (chat_events.read_created, chat_events.read_persisted):
        try:
            event = read(data)
            chat_events.encode(event)
            found.append("y")
        except InvalidInput as exc:
            found.append(str(exc)[:60])
    return "".join(found)


def _tokens_of_chat(data: bytes) -> object:
    text = text_of(data)
    assert _tokens.read_login(text) is None and _tokens.read_invitation(text) is None
    return ""


def _chat_names(data: bytes) -> object:
    name = checked_name(text_of(data))
    assert checked_name(name) == name
    return name_key(name)


_chat_index = apsw.Connection(":memory:")
_chat_index.execute("create virtual table s using fts5 (terms, tokenize = 'unicode61 remove_diacritics 0')")


def _topic_places(data: bytes) -> object:
    places = read_places(text_of(data), 12)
    assert read_places(write_places(places), 12) == places
    return form(places)


def _chat_search(data: bytes) -> object:
    """What is looked for is an expression that the database takes, whatever it is, and finds the text itself."""
    text = text_of(data)[:300]
    parts = parts_of(text)
    if not parts:
        return ""
    _chat_index.execute("delete from s")
    _chat_index.execute("insert into s values (?)", (" ".join(term.text for term in terms_of(text)),))
    wanted = " AND ".join('terms : "' + " ".join(part) + '" *' for part in parts)
    assert list(_chat_index.execute("select 1 from s where s match ?", (wanted,)))
    return form([len(part) for part in parts])


def _chat_images(data: bytes) -> object:
    found = []
    for kind in ("image/jpeg", "image/png", "image/webp", "image/gif"):
        try:
            clean = without_metadata(data, kind, 6)
            assert len(clean) <= len(data) + 100
            found.append("y")
        except InvalidInput as exc:
            found.append(str(exc)[:30])
    return "".join(found)


def _cursor(data: bytes) -> object:
    return form(read_cursor(text_of(data)))


# The original system: a message file, and databases in which each line of the input is a row


def _original(data: bytes) -> object:
    _made("original/telemetry/dlq")
    path = _folder.file("original/telemetry/dlq/m1.json", data)
    (entry,) = read_tree(path.parent.parent.parent, Folders(), ManualClock()).entries
    assert entry.message is not None and entry.failure is not None
    JsonCodec().encode(entry.message, queue="telemetry")
    return f"{entry.failure.code}{entry.failure.reason[-60:]}{type(entry.message.body).__name__}{entry.attempt}"


def _pages(data: bytes) -> object:
    path = _folder.file("pages.db", data)
    with closing(PageFile(path)) as pages:
        rows = list(pages.rows())
    return f"{len(rows)}{pages.free is None}{sum(len(row.values) for row in rows)}"


def _seed(data: bytes) -> object:
    path = _folder.file("seed.db", b"")
    for name in os.listdir(path.parent):
        if name.startswith("seed.db"):
            place = path.parent / name
            if place.is_file():
                place.unlink()
    db = connect(path)
    db.execute(SCHEMA.format(more=MORE))
    for number, line in enumerate(data.split(b"\n")[:50]):
        fields: list[Any] = [field if field else None for field in line.split(b"\t")]
        texts = [_column(field) for field in (*fields, *[None] * 8)][:8]
        key, value, queue, state, priority, available, attempt, target = texts
        key = f"{key}:{number}"
        try:
            db.execute("insert into kv values (?, ?, 'message', 1, 1, null)", (key, value))
            row = (queue, state, priority, available, attempt, key, target)
            columns = "queue, state, priority, available_at, attempt, message_key, target_consumer_id"
            db.execute(f"insert into msg_index ({columns}) values (?, ?, ?, ?, ?, ?, ?)", row)
        except Exception:  # SQLite refuses the row: it cannot be there
            continue
    db.close()
    store = SqliteStore(path, clock=ManualClock())
    try:
        found = []
        for queue in store.queues():
            leases = store.lease(queue, 100, 10.0)
            found.append(f"{len(leases)}{store.counts(queue)}")
        return "".join(found)[:200]
    finally:
        store.close()


def _column(field: bytes | None) -> object:
    if field is None:
        return None
    if field[:1] == b"=":
        return field[1:]  # a blob
    try:
        return int(field)
    except ValueError:
        return field.decode("utf-8", "replace")


_HEADERS = (
    "MIME-Version: Message-ID: From: To: Cc: Date: X-IGNITE-Type: X-Pabal-Headers: X-Pabal-Attributes: base64 8bit"
)
_POLICY = "retry dlq limit rules field type value values pattern enum required minLength schema messageSchema onInvalid"
_REQUEST = "requestId clientId command payload store.publish store.settle drafts message messageId settlements verdict"

READERS: dict[str, Reader] = {
    "json": Reader(_json, (InvalidInput,)),
    "yaml": Reader(_yaml, (InvalidInput,), words("--- ... %TAG %YAML &a *a !x !!str | > |+ >- ? : -")),
    "yaml_slow": Reader(_yaml_slow, (InvalidInput,), words("--- ... %TAG %YAML &a *a !x !!str | > |+ >- ? : -"), 0.1),
    "envelope": Reader(_envelope, (DecodeError,), words("payload messageId payloadEncoding base64 attributes headers")),
    "mime": Reader(_mime, (DecodeError,), words(_HEADERS)),
    "mime_shown": Reader(_mime_shown, (InvalidInput,), words(_HEADERS)),
    "mime_restated": Reader(_mime_restated, (DecodeError,), words(_HEADERS)),
    "kingdom_document": Reader(_kingdom_document, (DecodeError,), words("id type task_id status created_at payload")),
    "ignite_body": Reader(_ignite_body, (PabalError,), tuple(name.encode() for name in ignite_types.TYPES)),
    "search": Reader(_search, (InvalidInput,), (b'"', "한글".encode(), "かな漢字".encode(), b"AND", b"*", b"_")),
    "patterns": Reader(_patterns, (InvalidInput,), words("** * ? [a-z] [!] / .. src/ .py")),
    "client_settings": Reader(
        _client_settings, (InvalidConfig,), words('hooks Stop matcher command "pabal ignite inbox --hook" timeout')
    ),
    "script": Reader(_script, (), words("xn__ é 日本 _ बढ़ई")),
    "team": Reader(
        _team, (InvalidConfig,), words("agents: wake: command: limits: retry: watchers: kind: github files")
    ),
    "kingdom_config": Reader(_kingdom_config, (), words("slack: retry: concurrency: intervals: http: port: token:")),
    "manifest": Reader(_manifest, (), words("name: subscribes: schedules: cron: timezone: limits: command:"), 0.3),
    "manager_json": Reader(_manager_json, (InvalidConfig,), words("backend queues ipc paths lease sqlite hybrid")),
    "manager_toml": Reader(_manager_toml, (InvalidConfig,), words("[queues] [[queues]] name= [ipc] [paths] '''")),
    "state": Reader(_state, (*DAMAGED,)),
    "role_files": Reader(_role_files, (), words("pid boot_id started last passes ts type data status")),
    "policy": Reader(_policy, (InvalidPolicy,), words(_POLICY)),
    "cron": Reader(
        _cron, (InvalidConfig,), words("* */2 1-5 L MON JAN 0 30 2 29 59 60 # 5#1 Asia/Seoul Europe/Berlin ..")
    ),
    "names": Reader(_names, ()),
    "receipt": Reader(_receipt, (InvalidInput,)),
    "mcp_arguments": Reader(
        _mcp_arguments,
        (),
        words("receipt queue wait max to body type reply question options seconds state"),
    ),
    "file_names": Reader(_file_names, (), words("100- ~l ~k ~s ~a1 ~g ~t ~e ~r .json .mime .why .tmp")),
    "url": Reader(
        _url, (), words("sqlite: file: hybrid: postgresql:// kafka:// mailbox: u:s3cr3t@h :5432 ?busy= ?owner= [::1]")
    ),
    "origin": Reader(_origin, (InvalidInput,), words("http:// https:// localhost 127.0.0.1 [::1] :8080")),
    "command_line": Reader(_command_line, (), words("s m h d forever high low key=value")),
    "requests": Reader(_requests, (), words(_REQUEST)),
    "answers": Reader(_answers, (PabalError,), words("ok data error code message type ids requestId")),
    "github": Reader(
        _github, (), words("number id user login type body created_at updated_at pull_request issue label")
    ),
    "notifications": Reader(_notifications, (WatchFailed,), words("id reason updated_at subject repository full_name")),
    "jira": Reader(_jira, (WatchFailed,), words("issues key fields status name updated nextPageToken priority labels")),
    "slack": Reader(
        _slack, (InvalidInput,), words("type message app_mention ts thread_ts channel channel_type im text")
    ),
    "slack_buttons": Reader(
        _slack_buttons,
        (),
        words("type block_actions actions block_id question- action_id answer-1 value user"),
    ),
    "line": Reader(_line, (InvalidInput,), words("key type body at priority id payload source repo")),
    "chat_frames": Reader(_frames, (), words("roomId clientMsgId content type TEXT IMAGE email password lastSequence")),
    "chat_events": Reader(
        _chat_events, (), words("eventId roomId senderId clientMsgId messageType content producedAt")
    ),
    "chat_tokens": Reader(_tokens_of_chat, (), words("eyJhbGciOiJub25lIn0 . HS256 none sub aud exp")),
    "chat_cursor": Reader(_cursor, (InvalidInput,)),
    "chat_names": Reader(_chat_names, (InvalidInput,)),
    "topic_places": Reader(_topic_places, (InvalidInput,)),
    "chat_search": Reader(_chat_search, ()),
    "chat_images": Reader(_chat_images, (), (b"\xff\xe1", b"\xff\xda", b"IHDR", b"IEND", b"RIFF", b"VP8X", b"GIF89a")),
    "original_file": Reader(
        _original, (), words("messageId payload attributes createdAt availableAt expiredAt dlqReason dlqAt")
    ),
    "sqlite_pages": Reader(_pages, (), ()),
    "seed_database": Reader(
        _seed, (PabalError,), words("ready delayed inflight dlq archived payload messageId"), 0.002
    ),
}
