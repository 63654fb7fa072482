"""Header values as lines of ASCII: RFC 2047 encoded words for what is not plain, and back.

Plain is printable ASCII that fits on one line. All else, spaces at the ends included, is encoded whole, so that every
text comes back as it was.
"""

import re
from base64 import b64decode, b64encode
from binascii import Error, a2b_qp

from pabal.errors import InvalidEncoding, InvalidHeader

MAX_LINE = 998  # what RFC 5322 allows
_LONGEST_PLAIN = 900  # leaves room for any name before it
_ROOM = 45  # bytes of UTF-8 in one encoded word of 75 characters
_plain = re.compile(r"(?! )[ -~]*(?<! )").fullmatch
_control = re.compile(r"[\x00-\x1f\x7f]").search
_word = re.compile(r"=\?([^?\s]{1,40})\?([bBqQ])\?([^?\s]*)\?=", re.ASCII)
_between = re.compile(r"(\?=)[ \t]+(?==\?[^?\s]{1,40}\?[bBqQ]\?[^?\s]*\?=)", re.ASCII)
_CHARSETS = frozenset({"utf-8", "us-ascii"})


def check_value(name: str, value: str) -> str:
    """Return a header's value if it is one line of text; raise InvalidHeader if not."""
    if not value.isprintable() and _control(value):
        raise InvalidHeader(f"{name} holds a line break or another control character, which no header may hold")
    return value


def encoded(value: str) -> str:
    """Return the value as it stands in a file, its further lines each begun with a space."""
    if len(value) <= _LONGEST_PLAIN and _plain(value) and "=?" not in value:
        return value
    return "\n ".join(f"=?utf-8?b?{b64encode(part).decode()}?=" for part in _parts(value))


def decoded(name: str, raw: str) -> str:
    """Return the value that stands in a file as `raw`, unfolded and without the spaces around it."""
    if "=?" not in raw:
        return check_value(name, raw)
    return check_value(name, _word.sub(lambda found: _decoded_word(name, *found.groups()), _between.sub(r"\1", raw)))


def _parts(value: str) -> list[bytes]:
    parts = [b""]
    for char in value:
        byte = char.encode()
        if len(parts[-1]) + len(byte) > _ROOM:
            parts.append(b"")
        parts[-1] += byte
    return parts


def _decoded_word(name: str, charset: str, kind: str, text: str) -> str:
    charset = charset.partition("*")[0].lower()
    if charset not in _CHARSETS:
        raise InvalidEncoding(f"{name}: an encoded word must be of utf-8; found {charset:.40}")
    try:
        data = b64decode(text, validate=True) if kind in "bB" else a2b_qp(text, header=True)
        return data.decode(charset)
    except (Error, UnicodeDecodeError) as exc:
        raise InvalidEncoding(f"{name}: an encoded word that is not {charset} in {kind.upper()}") from exc
