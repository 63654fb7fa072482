"""The state of a message in the words of its file: X-IGNITE-Status and what belongs to it.

The folder is the truth. A word that already fits the state stays, so that writing the same state twice changes nothing
and `delivered`, which only the one who delivers can know, is kept.
"""

from datetime import UTC, datetime

from pabal.codecs.mime.fields import ERROR_AT, ERROR_REASON, LAST_RETRY_AT, PROCESSED_AT, RETRY_COUNT, STATUS
from pabal.codecs.mime.head import Head, edited, read_head
from pabal.jsontext import storable

# For each state the words that fit it; the first is written. A message that nobody took yet has none.
_WORDS: dict[str, tuple[str, ...]] = {
    "ready": ("queued", "retrying", ""),
    "delayed": ("queued", "retrying", ""),
    "inflight": ("processing", "delivered"),
    "done": ("completed",),
    "dead": ("dead_letter",),
    "corrupt": ("error",),
}
_HELD = _WORDS["inflight"]
_LONGEST_REASON = 500


def restated(data: bytes, state: str, *, at: float, reason: str = "") -> bytes:
    """Return the file saying its state; raise InvalidInput if it has no headers to say it in."""
    head = read_head(data)
    before = head.get(STATUS) or ""
    if before in _WORDS[state]:
        return data
    now = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    changes: dict[str, str | None] = {STATUS: _WORDS[state][0]}
    if state == "inflight":
        changes[PROCESSED_AT] = now
    elif state in ("ready", "delayed") and before in _HELD:
        changes |= {STATUS: "retrying", RETRY_COUNT: str(_retries(head) + 1), LAST_RETRY_AT: now}
    if reason:
        changes |= {ERROR_REASON: _line(reason), ERROR_AT: now}
    elif state in ("inflight", "done"):
        changes |= {ERROR_REASON: None, ERROR_AT: None}
    return edited(data, changes)


def _retries(head: Head) -> int:
    raw = head.get(RETRY_COUNT) or "0"
    return int(raw) if raw.isdecimal() and raw.isascii() and len(raw) < 10 else 0


def _line(reason: str) -> str:
    """Return a reason as one line that a header can carry."""
    text = "".join(char if char.isprintable() else " " for char in reason)
    return storable(text)[:_LONGEST_REASON].strip()
