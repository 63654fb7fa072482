"""Keys of clients, and the signature (AWS Signature Version 4) with which a client proves that it has one."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote

import msgspec

from pabal import jsontext
from pabal.clock import Clock
from pabal.durable import write_whole
from pabal.errors import InvalidInput
from pabal.gateway.sqs.errors import SqsError
from pabal.jsontext import pretty

_ALGORITHM = "AWS4-HMAC-SHA256"
_WINDOW = 15 * 60  # seconds that the clocks of client and gateway may differ
_LONGEST = 7 * 86400  # seconds for which a URL may be signed
_ANY_SECRET = "no such key"  # compared with, so that an unknown key takes as long as a wrong secret
# What a key may do, and the actions of each right.
RIGHTS: Mapping[str, frozenset[str]] = {
    "send": frozenset({"SendMessage", "SendMessageBatch"}),
    "receive": frozenset(
        {
            "ReceiveMessage",
            "DeleteMessage",
            "DeleteMessageBatch",
            "ChangeMessageVisibility",
            "ChangeMessageVisibilityBatch",
        }
    ),
    "look": frozenset(
        {
            "GetQueueAttributes",
            "GetQueueUrl",
            "ListDeadLetterSourceQueues",
            "ListMessageMoveTasks",
            "ListQueueTags",
            "ListQueues",
            "LookAtMessages",
        }
    ),
    "manage": frozenset(
        {
            "AddPermission",
            "CancelMessageMoveTask",
            "CreateQueue",
            "DeleteQueue",
            "PurgeQueue",
            "RemovePermission",
            "SetQueueAttributes",
            "StartMessageMoveTask",
            "TagQueue",
            "UntagQueue",
        }
    ),
}


class Key(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A key of a client: what it may do, and with which queues, by patterns."""

    access_key: str
    secret: str
    name: str = ""
    queues: tuple[str, ...] = ("*",)
    rights: tuple[str, ...] = tuple(RIGHTS)

    def allows(self, action: str, queue: str) -> bool:
        if not any(action in RIGHTS.get(right, ()) for right in self.rights):
            return False
        return not queue or self.may_use(queue)

    def rights_left(self, *, read_only: bool) -> list[str]:
        """Return its rights at a gateway; one that is read-only leaves `look` alone."""
        return [right for right in self.rights if right == "look" or not read_only]

    def may_use(self, queue: str) -> bool:
        """Return whether this is one of its queues."""
        return any(fnmatchcase(queue, pattern) for pattern in self.queues)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[Key] = []


class Request(NamedTuple):
    """The parts of a request that are signed. Names of headers are in small letters."""

    method: str
    path: str  # as sent
    query: str
    headers: Mapping[str, str]
    body: bytes


def read_keys(path: Path) -> list[Key]:
    """Read the file of keys; refuse one that others may read."""
    try:
        if path.stat().st_mode & 0o077:
            raise InvalidInput(f"{path} can be read by others: chmod 600 {path}")
        found = jsontext.decode_as(path.read_bytes(), _File).keys
    except FileNotFoundError:
        raise InvalidInput(f"no keys at {path}: make one with `pabal gateway-keys add --keys {path}`") from None
    except (OSError, ValueError) as exc:
        raise InvalidInput(f"{path}: {exc}") from exc
    for key in found:
        if unknown := set(key.rights) - RIGHTS.keys():
            raise InvalidInput(
                f"{path}: {key.access_key} has the right {min(unknown)!r}; there are {', '.join(RIGHTS)}"
            )
    return found


def write_keys(path: Path, keys: Sequence[Key]) -> None:
    """Write the file of keys, for its owner alone, in one step."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    write_whole(str(draft), pretty(msgspec.to_builtins(_File(list(keys)))))
    draft.chmod(0o600)
    draft.replace(path)


def new_key(name: str, queues: Sequence[str], rights: Sequence[str]) -> Key:
    """Return a key with a secret that nobody can guess."""
    access_key = "PABAL" + "".join(secrets.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") for _ in range(15))
    return Key(access_key, secrets.token_urlsafe(30), name, tuple(queues) or ("*",), tuple(rights) or tuple(RIGHTS))


class Keys:
    """Verifies the signatures of requests."""

    def __init__(self, keys: Sequence[Key], clock: Clock) -> None:
        self._keys = {key.access_key: key for key in keys}
        self._clock = clock

    def verified(self, request: Request) -> Key:
        """Return the key that signed this request; raise the SqsError that refuses it."""
        given = _signed_in_query(request) or _signed_in_header(request)
        if given is None:
            raise SqsError(
                "MissingAuthenticationToken", "The request is not signed: give the client a key and its secret."
            )
        self._check_time(given)
        key = self._keys.get(given.access_key)
        expected = _signature(request, given, key.secret if key is not None else _ANY_SECRET)
        if not hmac.compare_digest(expected.encode(), given.signature.encode()) or key is None:
            if key is None:
                raise SqsError("InvalidClientTokenId", "The security token included in the request is invalid.")
            raise SqsError(
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided. Check your secret"
                " access key and signing method.",
            )
        return key

    def _check_time(self, given: _Given) -> None:
        try:
            signed_at = datetime.strptime(given.date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        except ValueError as exc:
            raise SqsError("IncompleteSignature", f"X-Amz-Date is no date: {given.date:.40}") from exc
        late = self._clock.now() - signed_at
        if not -_WINDOW <= late <= given.lifetime:
            raise SqsError(
                "RequestExpired",
                f"The request was signed at {given.date}, and counts for {given.lifetime:g} seconds from then.",
            )
        if given.scope[0] != given.date[:8]:
            raise SqsError("SignatureDoesNotMatch", "The date of the credential is not that of the request.")


class _Given(NamedTuple):
    """What a request says of its signature."""

    access_key: str
    scope: tuple[str, str, str, str]  # date, region, service, "aws4_request"
    headers: list[str]
    signature: str
    date: str
    in_query: bool
    lifetime: float = _WINDOW  # seconds; a URL that is signed says its own


def _signed_in_header(request: Request) -> _Given | None:
    text = request.headers.get("authorization", "")
    if not text:
        return None
    algorithm, _, rest = text.partition(" ")
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    if algorithm != _ALGORITHM or not {"Credential", "SignedHeaders", "Signature"} <= parts.keys():
        raise SqsError("IncompleteSignature", "The Authorization header is not one of AWS Signature Version 4.")
    date = request.headers.get("x-amz-date", "")
    return _given(parts["Credential"], parts["SignedHeaders"], parts["Signature"], date, in_query=False)


def _signed_in_query(request: Request) -> _Given | None:
    found = dict(parse_qsl(request.query, keep_blank_values=True))
    if found.get("X-Amz-Algorithm") != _ALGORITHM:
        return None
    try:
        lifetime = float(found.get("X-Amz-Expires", "900"))
        if not 1 <= lifetime <= _LONGEST:
            raise ValueError(f"X-Amz-Expires is from 1 to {_LONGEST}")
        credential, headers = found["X-Amz-Credential"], found["X-Amz-SignedHeaders"]
        given = _given(credential, headers, found["X-Amz-Signature"], found["X-Amz-Date"], in_query=True)
    except (KeyError, ValueError) as exc:
        raise SqsError("IncompleteSignature", f"The query lacks a part of the signature: {exc}") from exc
    return given._replace(lifetime=lifetime)


def _given(credential: str, headers: str, signature: str, date: str, *, in_query: bool) -> _Given:
    parts = credential.split("/")
    if len(parts) != 5 or parts[4] != "aws4_request":
        raise SqsError(
            "IncompleteSignature", f"Credential is not KEY/DATE/REGION/SERVICE/aws4_request: {credential:.80}"
        )
    access_key, day, region, service, end = parts
    signed = headers.lower().split(";")
    if "host" not in signed:
        raise SqsError("SignatureDoesNotMatch", "The header host must be signed.")
    return _Given(access_key, (day, region, service, end), signed, signature, date, in_query)


def _signature(request: Request, given: _Given, secret: str) -> str:
    scope = "/".join(given.scope)
    to_sign = "\n".join((_ALGORITHM, given.date, scope, sha256(_canonical(request, given)).hexdigest()))
    key = f"AWS4{secret}".encode()
    for part in given.scope:
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, to_sign.encode(), "sha256").hexdigest()


def _canonical(request: Request, given: _Given) -> bytes:
    """Return the request in the form that is signed. The body is always a part of it."""
    pairs = parse_qsl(request.query, keep_blank_values=True)
    encoded = sorted(
        (quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in pairs if name != "X-Amz-Signature"
    )
    headers = "".join(f"{name}:{' '.join(request.headers.get(name, '').split())}\n" for name in given.headers)
    lines = [
        request.method,
        quote(request.path, safe="/-_.~") or "/",
        "&".join(f"{name}={value}" for name, value in encoded),
        headers,
        ";".join(given.headers),
        sha256(request.body).hexdigest(),
    ]
    return "\n".join(lines).encode()
