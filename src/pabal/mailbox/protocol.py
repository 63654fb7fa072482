"""The mailbox protocol: requests and answers as values, the names of the commands, the codes of the errors.

A request file holds one request, or an array of at most 1,000 requests of one client. Each request is
{requestId, clientId, command, timestampMs, deadlineMs, payload}; its answer is {requestId, ok: true, data} or
{requestId, ok: false, error: {code, message, type}}.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import msgspec

from pabal import errors, jsontext
from pabal.errors import InvalidDeadline, InvalidInput, InvalidRequest, NotJson, PabalError, Refused, TooDeep, Uncertain
from pabal.jsontext import MAX_DEPTH
from pabal.names import check_name

MAX_REQUESTS = 1000
MAX_REQUEST_ID = 200
_ENVELOPE_DEPTH = 8  # levels that a request puts around a body
_LAST_INSTANT = 1e14  # milliseconds: in the year 5138

T = TypeVar("T")


class Code(StrEnum):
    """Every code that an answer may carry."""

    ERR_INVALID_REQUEST = "ERR_INVALID_REQUEST"
    UNKNOWN_COMMAND = "UNKNOWN_COMMAND"
    QUEUE_NOT_FOUND = "QUEUE_NOT_FOUND"
    QUEUE_FULL = "QUEUE_FULL"
    QUEUE_NOT_EMPTY = "QUEUE_NOT_EMPTY"
    MESSAGE_NOT_FOUND = "MESSAGE_NOT_FOUND"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    LEASE_MISMATCH = "LEASE_MISMATCH"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    TIMEOUT = "TIMEOUT"
    PARSE_ERROR = "PARSE_ERROR"
    VALIDATION_FAILED = "VALIDATION_FAILED"
    DLQ_NOT_FOUND = "DLQ_NOT_FOUND"


# The first match counts: an error stands before its parents.
_CODES: tuple[tuple[type[PabalError], Code], ...] = (
    (errors.ValidationFailed, Code.VALIDATION_FAILED),
    (errors.QueueUnknown, Code.QUEUE_NOT_FOUND),
    (errors.QueueFull, Code.QUEUE_FULL),
    (errors.QueueNotEmpty, Code.QUEUE_NOT_EMPTY),
    (errors.MessageUnknown, Code.MESSAGE_NOT_FOUND),
    (errors.LeaseLost, Code.LEASE_EXPIRED),
    (errors.DeadlinePassed, Code.TIMEOUT),
    (errors.NotJson, Code.PARSE_ERROR),
    (errors.NotUtf8, Code.PARSE_ERROR),
    (errors.TooDeep, Code.PARSE_ERROR),
    (errors.DuplicateKey, Code.PARSE_ERROR),
    (errors.InvalidNumber, Code.PARSE_ERROR),
    (errors.NumberOutOfRange, Code.PARSE_ERROR),
    (errors.InvalidText, Code.PARSE_ERROR),
    (errors.InvalidInput, Code.ERR_INVALID_REQUEST),
    (errors.UnsafeFile, Code.ERR_INVALID_REQUEST),
    (errors.SenderMismatch, Code.ERR_INVALID_REQUEST),
)

ALIASES: Mapping[str, str] = {
    "consumenext": "consume_next",
    "consume": "consume_next",
    "extendlease": "extend_lease",
    "extend": "extend_lease",
    "listdlq": "list_dlq",
    "dlq": "list_dlq",
    "reprocessdlq": "reprocess_dlq",
    "reprocess": "reprocess_dlq",
    "purgedlq": "purge_dlq",
    "archivedlq": "archive_dlq",
    "quarantinedlq": "quarantine_dlq",
    "quarantine": "quarantine_dlq",
    "countdlq": "count_dlq",
    "releasedlq": "release_dlq",
    "getpolicy": "get_policy",
    "policy": "get_policy",
    "setpolicy": "set_policy",
    "createqueue": "create_queue",
    "deletequeue": "delete_queue",
    "listqueues": "queues",
    "list_queues": "queues",
}


class Request(NamedTuple):
    """One request of a client. `occurrence` counts equal ids within a file, so that each has its own effect."""

    id: str
    client: str
    command: str
    payload: msgspec.Raw | dict[str, Any]
    at: float = 0.0  # when it was written, in seconds; 0: not given
    deadline: float = 0.0  # in seconds; 0: none
    occurrence: int = 0
    repeated: bool = False  # it may have been run before, and a crash interrupted it

    def read(self, expected: type[T]) -> T:
        """Return the payload as the value that the command expects; raise InvalidRequest naming the field."""
        try:
            if isinstance(self.payload, msgspec.Raw):
                return jsontext.decode_as(self.payload, expected)
            return jsontext.convert(self.payload, expected)
        except msgspec.ValidationError as exc:
            if isinstance(exc.__cause__, InvalidInput):
                raise exc.__cause__ from None
            raise InvalidRequest(_field(str(exc))) from exc
        except (UnicodeDecodeError, msgspec.DecodeError) as exc:
            raise NotJson(f"payload: {exc}") from exc
        except RecursionError as exc:
            raise TooDeep(f"{MAX_DEPTH} levels at most") from exc


class Problem(NamedTuple):
    """A request that cannot be run, with the fields that could be read."""

    id: str
    client: str
    error: PabalError
    command: str = ""


class Batch(NamedTuple):
    """The content of a request file."""

    client: str  # "": unknown
    requests: Sequence[Request | Problem]
    many: bool = False  # an array; the answer is one too


class _Document(msgspec.Struct):
    requestId: str
    clientId: str
    command: str
    timestampMs: float = 0.0
    deadlineMs: float = 0.0
    payload: msgspec.Raw = msgspec.Raw(b"{}")


_decode = jsontext.decoder(_Document | list[_Document])  # type: ignore[arg-type]  # a union


def read_batch(data: bytes) -> Batch:
    """Read a request file. It never raises: what is wrong with a request is returned as a `Problem`."""
    if b'"store.' not in data[:400]:
        return _read_strictly(data)
    try:
        found = _decode(data)
    except (ValueError, RecursionError):  # the strict reader below has the better error text
        return _read_strictly(data)
    documents = found if isinstance(found, list) else [found]
    if not all(document.command.startswith("store.") for document in documents):
        # Written by people and scripts: duplicate keys and too large numbers are refused everywhere.
        return _read_strictly(data)
    return _batch([msgspec.structs.asdict(document) for document in documents], many=isinstance(found, list))


def _read_strictly(data: bytes) -> Batch:
    try:
        found = jsontext.read(data, depth=MAX_DEPTH + _ENVELOPE_DEPTH)
    except InvalidInput as exc:
        client = _salvaged(_CLIENT_ID, data)
        return Batch(client, [Problem(_salvaged(_REQUEST_ID, data), client, exc)])
    return _batch(found if isinstance(found, list) else [found], many=isinstance(found, list))


def _batch(documents: list[Any], *, many: bool) -> Batch:
    client = next((found for document in documents if (found := _client(document))), "")
    if not 0 < len(documents) <= MAX_REQUESTS:
        wrong = InvalidRequest(f"a file holds 1 to {MAX_REQUESTS} requests; found {len(documents)}")
        return Batch(client, [Problem("", client, wrong)])
    seen: dict[str, int] = {}
    requests: list[Request | Problem] = []
    for document in documents:
        try:
            request = _request(document, client)
        except InvalidInput as exc:
            known = document if isinstance(document, dict) else {}
            requests.append(Problem(str(known.get("requestId", "")), client, exc, str(known.get("command", ""))))
            continue
        seen[request.id] = seen.get(request.id, -1) + 1
        requests.append(request._replace(occurrence=seen[request.id]))
    return Batch(client, requests, many)


def _request(document: Any, client: str) -> Request:
    if not isinstance(document, dict):
        raise InvalidRequest(f"a request is an object; found {type(document).__name__}")
    for name in ("requestId", "clientId", "command"):
        if not isinstance(document.get(name), str) or not document[name]:
            raise InvalidRequest(f"{name} must be text; found {document.get(name)!r:.40}")
    if len(document["requestId"]) > MAX_REQUEST_ID:
        raise InvalidRequest(f"requestId must be at most {MAX_REQUEST_ID} characters")
    if check_name(document["clientId"], "client") != client:
        raise InvalidRequest("all requests of a file must be of one client")
    payload = document.get("payload", {})
    if not isinstance(payload, dict | msgspec.Raw):
        raise InvalidRequest(f"payload must be an object; found {type(payload).__name__}")
    command = document["command"].lower()
    return Request(
        id=document["requestId"],
        client=client,
        command=ALIASES.get(command, command),
        payload=payload,
        at=_instant(document, "timestampMs", InvalidRequest),
        deadline=_instant(document, "deadlineMs", InvalidDeadline),
    )


def _instant(document: Mapping[str, Any], name: str, error: type[InvalidInput]) -> float:
    value = document.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LAST_INSTANT:
        raise error(f"{name} must be milliseconds since the epoch, or 0; found {value!r:.40}")
    return value / 1000


def _client(document: Any) -> str:
    client = document.get("clientId") if isinstance(document, dict) else None
    try:
        return check_name(client, "client") if isinstance(client, str) else ""
    except InvalidInput:
        return ""


_CLIENT_ID = re.compile(rb'"clientId"\s*:\s*"([A-Za-z0-9_.-]{1,200})"')
_REQUEST_ID = re.compile(rb'"requestId"\s*:\s*"([A-Za-z0-9_.:-]{1,200})"')


def _salvaged(pattern: re.Pattern[bytes], data: bytes) -> str:
    """Find an id in bytes that are not valid JSON, so that these too can be answered."""
    found = pattern.search(data, 0, 1 << 16)
    text = found[1].decode() if found else ""
    return _client({"clientId": text}) if pattern is _CLIENT_ID else text


def _field(text: str) -> str:
    problem, _, place = text.partition(" - at `$")
    return f"payload{place.rstrip('`')}: {problem}" if place else f"payload: {problem}"


def answer_of(request_id: str, data: Any) -> dict[str, Any]:
    return {"requestId": request_id, "ok": True, "data": data}


def refusal_of(request_id: str, error: PabalError) -> dict[str, Any]:
    """Return the answer of a refusal. It names the error and never shows the body of a message."""
    code = error.code if isinstance(error, Refused) else code_of(error)
    document: dict[str, Any] = {"code": str(code), "message": str(error)}
    document["type"] = error.kind if isinstance(error, Refused) else type(error).__name__
    if isinstance(error, Refused | Uncertain) and error.ids:
        document["ids"] = list(error.ids)
    return {"requestId": request_id, "ok": False, "error": document}


def code_of(error: PabalError) -> Code:
    return next((code for kind, code in _CODES if isinstance(error, kind)), Code.INTERNAL_ERROR)
