"""Display names: what one may be, and when two of them look the same.

Two names that look the same have the same key: letters of other scripts that look Latin, accents, letter case, digits
that look like letters, spaces and punctuation do not count. The key is unique, so nobody can pass for another person.
Scripts that few people write today are refused, as Unicode advises for identifiers (UAX 31): most of them have letters
that look Latin. A Greek capital counts as what it looks like, not as its small letter: Ν is an N and ν a v.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from pabal.errors import InvalidInput

MAX_NAME = 40  # characters
_MARKS = 3  # accents and vowel signs on one letter; more of them cover other lines of the page
# Control characters, invisible and bidirectional formats, surrogates, private and unassigned ones, line separators.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0\u2800"  # letters and marks without a shape
_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")  # of a variant of the letter before them
# How the Unicode names of letters and marks of the usual scripts begin.
_USUAL = frozenset(
    "ARABIC ARMENIAN BENGALI BOPOMOFO CJK COMBINING CYRILLIC DEVANAGARI ETHIOPIC EXTENDED GEORGIAN GREEK GUJARATI "
    "GURMUKHI HANGUL HEBREW HIRAGANA IDEOGRAPHIC KANNADA KATAKANA KATAKANA-HIRAGANA KHMER LAO LATIN MALAYALAM "
    "MODIFIER MYANMAR ORIYA SINHALA TAMIL TELUGU THAANA THAI TIBETAN VARIATION".split()
)
# Small letters, and letters without case, that stand in for another one in names, by that one.
_ALIKE = {
    "a": "аɑα",
    "b": "ьвƅβ",
    "c": "сϲς",
    "d": "ԁ",
    "e": "еҽєεɛ",
    "f": "ƒ",
    "g": "ɡցԍ",
    "h": "һհн",
    "j": "јϳյ",
    "k": "кκ",
    "l": "iіıιɩӏ1|!ǀᅵןוا",
    "m": "м",
    "n": "ոռղпηπŋ",
    "o": "оοօ0σᄋסهဝഠ",
    "p": "рρ",
    "q": "ԛգզ",
    "r": "г",
    "s": "ѕ5$",
    "t": "тτ",
    "u": "υսцμʋ",
    "v": "ѵν",
    "w": "ԝѡωա",
    "x": "хχ",
    "y": "уүγ",
    "3": "зӡʒ",
    "口": "ロ",
    "工": "エ",
    "力": "カ",
    "夕": "タ",
    "卜": "ト",
    "八": "ハ",
    "二": "ニ",
    "才": "オ",
    "千": "チ",
    "一": "ーᅳ",
    "へ": "ヘ",
    "べ": "ベ",
    "ぺ": "ペ",
    "り": "リ",
}
# Capital letters whose small letter looks like something else.
_CAPITALS = {"h": "Η", "l": "Լ", "m": "Μ", "n": "Ν", "s": "Տ", "y": "Υ", "z": "Ζ"}
_FOLD = {ord(letter): plain for plain, letters in _ALIKE.items() for letter in letters}
_FOLD_CAPITALS = {ord(letter): plain for plain, letters in _CAPITALS.items() for letter in letters}
_ACCENTED = ("LATIN", "GREEK", "CYRILLIC")  # marks of other scripts make another letter, as in Japanese


def checked_name(text: str) -> str:
    """Return a display name as it is stored; raise InvalidInput if it cannot be one."""
    name = re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip()
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidInput(f"a name has 1 to {MAX_NAME} characters; found {len(name)}")
    if any(unicodedata.category(letter) in _UNSEEN or letter in _BLANK for letter in name):
        raise InvalidInput("a name has no invisible or control characters")
    if "@" in name:
        raise InvalidInput("a name has no @: it must not look like an address")
    if not all(map(_is_usual, name)):
        raise InvalidInput("a name is written in a script that is in common use")
    parts = unicodedata.normalize("NFD", name)
    if "M" * (_MARKS + 1) in "".join(unicodedata.category(letter)[0] for letter in parts):
        raise InvalidInput(f"a letter of a name has at most {_MARKS} marks")
    if not name_key(name):
        raise InvalidInput("a name has at least one letter or digit")
    return name


def name_key(name: str) -> str:
    """Return what a name looks like; two names with one key cannot be told apart."""
    plain = _without_marks(_SELECTORS.sub("", unicodedata.normalize("NFKC", name)))
    looks = "".join(map(_base, plain)).translate(_FOLD_CAPITALS).casefold().translate(_FOLD)
    kept = "".join(letter for letter in looks if unicodedata.category(letter)[0] in "LMN")
    return kept.replace("rn", "m").replace("vv", "w")


def name_of_email(email: str) -> str:
    """Return a name for a user who chose none: the part of the address before the @, as far as a name may have it."""
    local = unicodedata.normalize("NFKC", email.partition("@")[0])
    try:
        return checked_name(local[: MAX_NAME - 8])
    except InvalidInput:
        return "guest"


def _is_usual(letter: str) -> bool:
    """Return whether a letter, mark or digit is of a usual script; other characters are."""
    if letter.isascii() or unicodedata.category(letter)[0] not in "LM":
        return True
    return unicodedata.name(letter, "").partition(" ")[0] in _USUAL


def _without_marks(text: str) -> str:
    """Remove accents, and marks on what is no letter. Marks of other scripts make another letter, as in Japanese."""
    kept: list[str] = []
    accented = True
    for letter in unicodedata.normalize("NFD", text):
        if unicodedata.category(letter)[0] != "M":
            accented = not letter.isalpha() or unicodedata.name(letter, "").startswith(_ACCENTED)
        elif accented:
            continue
        kept.append(letter)
    return unicodedata.normalize("NFC", "".join(kept))


@lru_cache(10_000)
def _base(letter: str) -> str:
    """Return the plain letter of one with a stroke or a hook, or of a small capital; the ASCII digit of any digit."""
    if (digit := unicodedata.decimal(letter, None)) is not None:
        return str(digit)
    name = unicodedata.name(letter, "")
    if name.startswith(_ACCENTED):
        plain = name.partition(" WITH ")[0].replace("LETTER SMALL CAPITAL ", "SMALL LETTER ")
        try:
            return unicodedata.lookup(plain)
        except KeyError:
            pass
    return letter
