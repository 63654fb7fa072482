"""Writes any JSON value as YAML that `cat` shows as a person would have written it.

Block style, one line per fact; text as it stands where every YAML reader, old or new, takes it for text, else in double
quotes; text of several lines as a literal block. No character that could move a cursor is written as it is.
"""

import json
import re

from pabal.jsontext import Json

_UNSEEN = r"\x00-\x1f\x7f-\xa0\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff"
# Begins with a letter, so that it is no number, date or mark; no ': ' and no ' #', which would end it.
_plain = re.compile(rf"[^\W\d](?:[^:#{_UNSEEN}]|:(?=[^ {_UNSEEN}])|(?<! )#)*(?<! )").fullmatch
_unseen = re.compile(f"[{_UNSEEN}]")
_unfit = re.compile(f"[{_UNSEEN}]".replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f")).search
# What readers of YAML 1.1 or 1.2 take for a truth value or for nothing, in any case.
_WORDS = frozenset("y n yes no on off true false null".split())
_LONGEST_WORD = 5
_LONGEST_KEY = 500  # beyond 1024 characters a key needs a mark of its own


def write(value: Json) -> str:
    """Return the value as YAML, with one final newline."""
    lines: list[str] = []
    if value and type(value) in (dict, list):
        _collection(value, "", "", lines)
    else:
        lines.append(_scalar(value, "  "))
    lines.append("")
    return "\n".join(lines)


def _collection(value: Json, first: str, pad: str, lines: list[str]) -> None:
    """Write the entries of an object or list; the first continues the line `first`, the others begin with `pad`."""
    if isinstance(value, dict):
        for key, item in value.items():
            name = _text(key, "", many_lines=False)
            if len(name) > _LONGEST_KEY:
                lines.append(f"{first}? {name}")
                name, first = "", pad
            if item and type(item) in (dict, list):
                lines.append(f"{first}{name}:")
                _collection(item, f"{pad}  ", f"{pad}  ", lines)
            else:
                lines.append(f"{first}{name}: {_scalar(item, pad + '  ')}")
            first = pad
    elif isinstance(value, list):
        for item in value:
            if item and type(item) in (dict, list):
                _collection(item, f"{first}- ", f"{pad}  ", lines)
            else:
                lines.append(f"{first}- {_scalar(item, pad + '  ')}")
            first = pad


def _scalar(value: Json, pad: str) -> str:
    if type(value) is str:
        return _text(value, pad)
    if type(value) is float:
        text = repr(value)
        # Readers of YAML 1.1 know no exponent without a point.
        return text if "." in text else text.replace("e", ".0e")
    return json.dumps(value)


def _text(text: str, pad: str, *, many_lines: bool = True) -> str:
    if _plain(text) and not (len(text) <= _LONGEST_WORD and text.lower() in _WORDS):
        return text
    if many_lines and "\n" in text and text.strip(" \t\n") and not _unfit(text):
        return _literal(text, pad)
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if quoted.isprintable() else _unseen.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


def _literal(text: str, pad: str) -> str:
    lines = text.split("\n")
    keep = "-"
    if not lines[-1]:
        lines.pop()
        keep = "" if lines[-1] else "+"
    indent = "2" if text[0] in " \t\n" else ""
    return "\n".join([f"|{indent}{keep}", *(pad + line if line else "" for line in lines)])
