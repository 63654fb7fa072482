"""Text from strangers, made harmless before an agent sees it.

Control characters go; what means something to a shell or to YAML is turned into its full-width form, which looks alike
and means nothing; long text is cut. Our own files need none of this. Agents that paste text into commands do.
"""

from __future__ import annotations

import re

LONGEST = 256  # characters of a title or a name
LONGEST_TEXT = 8000  # characters of a text of several lines
_WIDE = 0xFEE0  # from an ASCII character to its full-width form
_FORMS = {ord(char): ord(char) + _WIDE for char in "`$\\;|&<>(){}[]!#*\"'%"}
_colon = re.compile(r":(?=\s|$)")
_CUT = "…"


def one_line(text: object, limit: int = LONGEST) -> str:
    """Return a title or a name as one harmless line."""
    return _harmless(" ".join(str(text or "").split()), limit)


def many_lines(text: object, limit: int = LONGEST_TEXT) -> str:
    """Return a text harmless, line by line."""
    return _harmless("\n".join(str(text or "").splitlines()), limit)


def _harmless(text: str, limit: int) -> str:
    text = "".join(char for char in text if char.isprintable() or char == "\n")
    text = _colon.sub(chr(ord(":") + _WIDE), text.translate(_FORMS))
    return text if len(text) <= limit else text[: limit - 1] + _CUT
