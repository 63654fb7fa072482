"""The original system: what its envelopes mean, and its tree of files.

    {root}/{queue}/{inbox,processing,archive,dlq,delayed}/{messageId}.json
    {root}/meta/policy_{queue}.json, meta/leases/{key}.json, meta/delayed/{key}.json

Its database is read by `stores/sqlite/seed.py`. Reading changes nothing at the source. What cannot be read as a message
becomes a dead letter with the bytes that were found and the reason, so nothing is left behind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from pabal import jsontext
from pabal.clock import Clock
from pabal.durable import translated
from pabal.envelope import message_from
from pabal.errors import DecodeError, InvalidInput, InvalidPolicy, StoreRefused, TooLarge, UnsafeFile
from pabal.filesystem import read_whole
from pabal.message import MAX_PRIORITY, MIN_PRIORITY, Message
from pabal.names import check_id, check_name
from pabal.policy.policy import policy_from
from pabal.store import Entry, Failure, FailureCode, State

_DELAYED = "delayed"
_USUAL = frozenset({"inbox", "processing", "archive", "dlq", _DELAYED})


class Folders(NamedTuple):
    """The names of the folders in the original file tree, as its configuration may set them."""

    inbox: str = "inbox"
    processing: str = "processing"
    archive: str = "archive"
    dlq: str = "dlq"
    meta: str = "meta"


class Original(NamedTuple):
    """What a tree of the original system holds: the policies by queue, and the messages, queue by queue."""

    policies: Mapping[str, Mapping[str, Any]]
    entries: Iterator[Entry]


# Envelopes


def envelope_in(data: bytes) -> dict[str, Any]:
    """Return a document of the original system; raise DecodeError if it is none."""
    try:
        found = jsontext.read(data)
    except InvalidInput as exc:
        raise DecodeError(f"{exc.code}: {exc}", data) from exc
    if not isinstance(found, dict):
        raise DecodeError("InvalidEnvelope: not an object", data)
    return found


def message_in(
    envelope: Mapping[str, Any],
    data: bytes,
    *,
    id: str,
    at: float,
    priority: int | None = None,
    target: str = "",
    expires_at: float | None = None,
) -> Message:
    """Read a minimal envelope, whose payload and attributes are JSON text; raise DecodeError with `data` if it is none.

    The values of an index come before those of the envelope. `at` is the time of a message that does not say its own.
    """
    if "payload" not in envelope:
        raise DecodeError("InvalidEnvelope: it has no payload", data)
    fields = dict(envelope)
    if isinstance(fields["payload"], str):
        fields["payload"] = _parsed(fields["payload"])
    if isinstance(fields.get("attributes"), str):
        fields["attributes"] = _attributes(fields["attributes"])
    level = fields.get("priority") if priority is None else priority
    if type(level) is int:
        fields["priority"] = max(MIN_PRIORITY, min(MAX_PRIORITY, level))
    fields["messageId"] = id
    # 0 and an empty text stand for none.
    fields["targetConsumerId"] = target or fields.get("targetConsumerId") or None
    fields["expiredAt"] = (expires_at or 0) * 1000 or fields.get("expiredAt") or None
    fields["createdAt"] = fields.get("createdAt") or None
    try:
        return message_from(fields, id=id, at=at)
    except (ValueError, TypeError, OverflowError, OSError) as exc:
        code = exc.code if isinstance(exc, InvalidInput) else "InvalidEnvelope"
        raise DecodeError(f"{code}: {exc}", data) from exc


def _parsed(text: str) -> Any:
    try:
        return jsontext.read(text.encode())
    except (InvalidInput, UnicodeEncodeError):
        return text


def _attributes(text: str) -> dict[str, Any]:
    """Return attributes. The original takes any text for them."""
    found = _parsed(text) if text else {}
    return found if isinstance(found, dict) else {"attributes": text}


def failure_of(envelope: Mapping[str, Any], attempt: int, at: float, reason: str = "") -> Failure:
    """Return why a message of the original died. An index may not say it, and the envelope then does."""
    found = reason or envelope.get("dlqReason")
    died = envelope.get("dlqAt")
    when = died / 1000 if type(died) is int and died > 0 else at
    return Failure(FailureCode.NACKED, found if isinstance(found, str) else "", when, attempt)


def set_aside(queue: str, id: str, data: bytes, reason: str, *, now: float, code: str = FailureCode.CORRUPT) -> Entry:
    """Return a dead letter that holds the bytes of something which is no message, as text if they are text."""
    try:
        body: str | bytes = data.decode()
    except UnicodeDecodeError:
        body = data
    return Entry(
        queue, id, State.DEAD, due_at=now, message=Message(id=id, body=body, created_at=now),
        failure=Failure(code, jsontext.storable(reason), now),
    )  # fmt: skip


def count_in(envelope: Mapping[str, Any], name: str) -> int:
    """Return a number of the envelope that cannot be negative; 0 if it is no number."""
    found = envelope.get(name)
    return max(0, min(found, 1 << 30)) if type(found) is int else 0


def id_of(text: str, where: str) -> str:
    """Return an id of the original if it is legal here, else one that is made of the place."""
    try:
        return check_id(text)
    except InvalidInput:
        return f"seed-{sha256(where.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"


def refuse_names(names: set[str], done: str = "Nothing was changed") -> None:
    """Raise StoreRefused if queues of the original have names that cannot be used here."""
    illegal = []
    for name in names:
        try:
            check_name(name)
        except InvalidInput:
            illegal.append(name)
    folded: dict[str, str] = {}
    illegal += [name for name in sorted(names) if folded.setdefault(name.lower(), name) != name]
    if illegal:
        raise StoreRefused(
            f"queue names that cannot be taken over: {', '.join(repr(name)[:80] for name in sorted(illegal))}."
            " A name is 1-200 of letters, digits, '-', '_' and inner dots, and no two differ only in case."
            f" {done}"
        )


def checked_policy(where: str, data: bytes) -> Mapping[str, Any]:
    """Return the document of a policy; raise StoreRefused that names it if it cannot be used."""
    try:
        found = jsontext.read(data)
        if not isinstance(found, dict):
            raise InvalidPolicy("policy: not an object")
        policy_from(found)
    except InvalidInput as exc:
        raise StoreRefused(
            f"{where} cannot be taken over: {exc}. Correct it, or move it away and set the policy afterwards with "
            f"`pabal policy set`; nothing was made"
        ) from exc
    return found


# The tree of files


def refuse_tree(root: Path) -> None:
    """Raise StoreRefused if this is the root of a file tree of the original system. Changes nothing."""
    if is_tree(root):
        raise StoreRefused(
            f"{root} holds the files of the original system: move it away, and take it over into a new store with "
            f"`pabal --url URL takeover {root.name}.original`. Nothing was changed"
        )


def is_tree(root: Path) -> bool:
    """Say whether a folder is the root of a file tree of the original system, and not of a store of this program."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        if (root / "pabal.json").exists():
            return False
        with os.scandir(root) as found:
            return any(_is_part(entry.path) for entry in found if entry.is_dir(follow_symlinks=False))
    return False


def _is_part(path: str) -> bool:
    with suppress(OSError):
        names = set(os.listdir(path))
        policies = any(name.startswith("policy_") and name.endswith(".json") for name in names)
        return policies or "leases" in names or names >= _USUAL
    return False


def read_tree(root: Path, folders: Folders, clock: Clock) -> Original:
    """Read a file tree of the original system, which must not run meanwhile."""
    with translated(f"reading {root}"):
        if (root / "pabal.json").exists():
            raise StoreRefused(f"{root} is a store of this program: use `pabal move --from file:{root} --to URL`")
        meta = root / folders.meta
        names = {
            entry.name
            for entry in os.scandir(root)
            if entry.is_dir() and entry.name != folders.meta and {*folders[:4], _DELAYED} & set(os.listdir(entry.path))
        }
        policies = {
            path.name.removeprefix("policy_").removesuffix(".json"): path for path in sorted(meta.glob("policy_*.json"))
        }
        if not names and not policies:
            raise StoreRefused(
                f"{root} has no queues of the original system, which are folders with {folders.inbox}/ and "
                f"{folders.processing}/: give the folder that `filesystem.root` names"
            )
        refuse_names({*names, *policies}, "Nothing was made")
        found = {name: checked_policy(str(path), read_part(path)[0]) for name, path in policies.items()}
    return Original(found, _Tree(root, folders, clock).entries(sorted(names)))


class _Tree:
    def __init__(self, root: Path, folders: Folders, clock: Clock) -> None:
        self._root = root
        self._meta = root / folders.meta
        # Waiting ones first: should an id be there twice, they keep it.
        self._states = {
            folders.inbox: State.READY,
            _DELAYED: State.DELAYED,
            folders.processing: State.INFLIGHT,
            folders.dlq: State.DEAD,
            folders.archive: State.DONE,
        }
        self._clock = clock

    def entries(self, queues: list[str]) -> Iterator[Entry]:
        for queue in queues:
            ids: set[str] = set()
            for folder, state in self._states.items():
                yield from self._in_folder(queue, folder, state, ids)

    def _in_folder(self, queue: str, folder: str, state: State, ids: set[str]) -> Iterator[Entry]:
        place = self._root / queue / folder
        with translated(f"reading {place}"):
            try:
                before, names = place.stat().st_mtime_ns, sorted(os.listdir(place))
            except FileNotFoundError:
                return
            for name in names:
                path = place / name
                if name.endswith(".json"):
                    stem = name.removesuffix(".json")
                    id = id_of(stem, f"{queue}/{folder}/{name}")
                    if id in ids:
                        id = id_of("", f"{queue}/{folder}/{name}")
                    ids.add(id)
                    yield self._entry(queue, path, id, state)
            if place.stat().st_mtime_ns != before:
                raise StoreRefused(f"{place} changed while it was read: stop the original system, then repeat")

    def _entry(self, queue: str, path: Path, id: str, state: State) -> Entry:
        data, changed = read_part(path)
        now = self._clock.now()
        try:
            envelope = envelope_in(data)
            message = message_in(envelope, data, id=id, at=changed)
        except DecodeError as exc:
            return set_aside(queue, id, data, f"{path}: {exc.reason}", now=now)
        attempt = count_in(envelope, "attempt")
        key = f"msg_{queue}_{path.stem}.json"
        due = count_at(envelope, "availableAt")
        if state is State.INFLIGHT:
            # Nobody can settle a lease of the original here, so its message is ready.
            attempt = max(attempt, count_in(self._about("leases", key), "attempt"))
        elif state is State.DELAYED:
            about = self._about("delayed", key)
            attempt = max(attempt, count_in(about, "attempt"))
            due = due or count_at(about, "availableAt")
        due = due or message.created_at
        failure = failure_of(envelope, attempt, changed) if state is State.DEAD else None
        if state in (State.READY, State.DELAYED, State.INFLIGHT):
            state = State.DELAYED if due > now else State.READY
        return Entry(queue, id, state, attempt, due, message, failure)

    def _about(self, folder: str, key: str) -> Mapping[str, Any]:
        """Return what the original wrote down about a message; an empty table if there is nothing to read."""
        with suppress(OSError, DecodeError, UnsafeFile, TooLarge):
            return envelope_in(read_whole(self._meta / folder / key, links=True)[0])
        return {}


def count_at(envelope: Mapping[str, Any], name: str) -> float:
    """Return a time of the envelope in seconds; 0 if there is none."""
    found = envelope.get(name)
    return found / 1000 if type(found) is int and 0 < found < 1 << 53 else 0.0


def read_part(path: Path) -> tuple[bytes, float]:
    """Return the bytes of a file of the tree and its time; raise StoreRefused that names a file that must be moved."""
    try:
        return read_whole(path, links=True)
    except (UnsafeFile, TooLarge, FileNotFoundError) as exc:
        why = "it is a link to nothing" if isinstance(exc, FileNotFoundError) else exc
        raise StoreRefused(f"{path} cannot be taken over: {why}. Move it away and repeat; nothing was made") from exc
