"""Display names: what one may be, and when two of them look the same.

Two names that look the same have the same key: letters of other scripts that look Latin, accents, letter case, digits
that look like letters, spaces and punctuation do not count. The key is unique, so nobody can pass for another person.
"""

from __future__ import annotations

import re
import unicodedata

from pabal.errors import InvalidInput

MAX_NAME = 40  # characters
# Control characters, invisible and bidirectional formats, surrogates, private and unassigned ones, line separators.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK = "\u115f\u1160\u3164\uffa0\u2800"  # letters without a shape
# The letters of Unicode's confusables that stand in for a Latin letter in names, by that letter.
_ALIKE = {
    "a": "аɑαа",
    "b": "ьƅ",
    "c": "сϲᴄ",
    "d": "ԁɗ",
    "e": "еҽєε",
    "f": "ƒſ",
    "g": "ɡցԍ",
    "h": "һհн",
    "k": "кκ",
    "l": "iіıιӏ1|!ǀ",
    "j": "јϳ",
    "m": "мᴍ",
    "n": "ոп",
    "o": "оοօ0σ᧐",
    "p": "рρ",
    "q": "ԛգ",
    "r": "гᴦ",
    "s": "ѕꜱ5$",
    "t": "тτ",
    "u": "υսц",
    "v": "ѵν",
    "w": "ԝѡω",
    "x": "хχ",
    "y": "уүγ",
    "z": "ᴢ",
}
_FOLD = {ord(letter): plain for plain, letters in _ALIKE.items() for letter in letters}
_SCRIPTS = ("LATIN", "GREEK", "CYRILLIC")


def checked_name(text: str) -> str:
    """Return a display name as it is stored; raise InvalidInput if it cannot be one."""
    name = re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip()
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidInput(f"a name has 1 to {MAX_NAME} characters; found {len(name)}")
    if any(unicodedata.category(letter) in _UNSEEN or letter in _BLANK for letter in name):
        raise InvalidInput("a name has no invisible or control characters")
    if "@" in name:
        raise InvalidInput("a name has no @: it must not look like an address")
    if not name_key(name):
        raise InvalidInput("a name has at least one letter or digit")
    return name


def name_key(name: str) -> str:
    """Return what a name looks like; two names with one key cannot be told apart."""
    folded = "".join(map(_base, unicodedata.normalize("NFKC", name))).casefold().translate(_FOLD)
    return re.sub(r"[\W_]", "", folded).replace("rn", "m").replace("vv", "w")


def name_of_email(email: str) -> str:
    """Return a name for a user who chose none: the part of the address before the @, as far as a name may have it."""
    local = unicodedata.normalize("NFKC", email.partition("@")[0])
    kept = "".join(letter for letter in local if unicodedata.category(letter) not in _UNSEEN and letter not in _BLANK)
    name = kept[: MAX_NAME - 8].strip()
    return name if name_key(name) else "guest"


def _base(letter: str) -> str:
    """Return a letter without its accents. Marks of other scripts make another letter, as in Japanese."""
    parts = unicodedata.normalize("NFD", letter)
    return parts[0] if len(parts) > 1 and unicodedata.name(parts[0], "").startswith(_SCRIPTS) else letter
