"""What queues, consumers and messages may be called, checked in one place.

ASCII only, so that no two names look alike, and safe as a file name as it stands.
"""

import re
from functools import lru_cache

from pabal.errors import InvalidName

_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-])){0,199}", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_:-]*(?:\.[A-Za-z0-9_:-]+)*", re.ASCII)
_LONGEST_ID = 128


@lru_cache(maxsize=4096)
def check_name(name: str, what: str = "queue") -> str:
    """Return the name if it is legal for a queue, consumer or target; raise InvalidName if not."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidName(f"{what} name must be 1-200 of letters, digits, '-', '_' and inner dots; found {name!r:.80}")
    return name


def check_id(id: str) -> str:
    """Return the message id if it is legal; raise InvalidName if not."""
    if not isinstance(id, str) or len(id) > _LONGEST_ID or not _ID.fullmatch(id):
        raise InvalidName(
            f"message id must be 1-128 of letters, digits, '-', '_', ':' and inner dots; found {id!r:.80}"
        )
    return id


def suggestion(name: str, known: list[str]) -> str:
    """Say which of the known names was probably meant, or else what they are."""
    from difflib import get_close_matches  # slow to import, and seldom needed

    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
