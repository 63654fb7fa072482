"""Which header says what: the names that are ours, their order, and where a message's own headers stand.

A message's header stands under its own name if it can be told from ours there and comes back as it was; all others
stand together, as JSON, in X-Pabal-Headers.
"""

import re
from collections.abc import Mapping

REQUIRED = (
    "MIME-Version",
    "Message-ID",
    "From",
    "To",
    "Date",
    "X-IGNITE-Type",
    "X-IGNITE-Priority",
    "Content-Type",
    "Content-Transfer-Encoding",
)
STATUS = "X-IGNITE-Status"
PROCESSED_AT = "X-IGNITE-Processed-At"
RETRY_COUNT = "X-IGNITE-Retry-Count"
LAST_RETRY_AT = "X-IGNITE-Last-Retry-At"
NEXT_RETRY_AFTER = "X-IGNITE-Next-Retry-After"
ERROR_REASON = "X-IGNITE-Error-Reason"
ERROR_AT = "X-IGNITE-Error-At"
# What changes while a message is on its way: of the delivery, not of the message.
MOVING = (STATUS, PROCESSED_AT, RETRY_COUNT, LAST_RETRY_AT, NEXT_RETRY_AFTER, ERROR_REASON, ERROR_AT)
THREAD_ID = "X-IGNITE-Thread-ID"
IN_REPLY_TO = "In-Reply-To"
REPOSITORY = "X-IGNITE-Repository"
ISSUE = "X-IGNITE-Issue"
# A message's own headers that have their place before all others.
PLACED = (IN_REPLY_TO, REPOSITORY, ISSUE)

# Fields of a message that are text, and the headers that say them if they say anything.
TEXTS: Mapping[str, str] = {
    "reply_to": "Reply-To",
    "target": "X-Pabal-Target",
    "group": "X-Pabal-Group",
    "dedup_key": "X-Pabal-Dedup-Key",
    "trace_id": "X-Pabal-Trace-ID",
}
MICROSECONDS = "X-Pabal-Microseconds"
EXPIRES_AT = "X-Pabal-Expires-At"
VERSION = "X-Pabal-Version"
ATTRIBUTES = "X-Pabal-Attributes"
HEADERS = "X-Pabal-Headers"

_OURS = (*REQUIRED, *MOVING, *TEXTS.values(), THREAD_ID, MICROSECONDS, EXPIRES_AT, VERSION, ATTRIBUTES, HEADERS, "Cc")
OURS = frozenset(name.lower() for name in _OURS)
_known = {name.lower(): name for name in (*PLACED, "Subject", "References")}
_simple = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,75}", re.ASCII).fullmatch


def name_of(written: str) -> str:
    """Return the name under which a message carries a header of this name, however it is written."""
    return _known.get(written.lower(), written)


def sorted_out(headers: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers that can stand under their own names, in their order, and the rest."""
    own: dict[str, str] = {name: headers[name] for name in PLACED if name in headers}
    rest: dict[str, str] = {}
    seen = {name.lower() for name in own}
    for name, value in headers.items():
        if name in own:
            continue
        low = name.lower()
        if low in OURS or low in seen or name_of(name) != name or not _simple(name):
            rest[name] = value
        else:
            own[name] = value
            seen.add(low)
    return own, rest
