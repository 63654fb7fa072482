"""YAML: every JSON value comes back from every reader, and what is no JSON is text or refused by name."""

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pabal.codecs.yaml import MAX_YAML, read, write
from pabal.errors import InvalidInput
from pabal.jsontext import Json

_MARKS = list("ab \n\t:#-'\"|>\\[]{},&*!%@`?~01.e+\r\x85\u2028\ufeff\u202e한ー🎉\x00")
_TEXT = st.text(st.sampled_from(_MARKS), max_size=12) | st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)
_SLOW_AND_FAST = [yaml.BaseLoader, getattr(yaml, "CBaseLoader", yaml.BaseLoader)]

TRICKY: list[Json] = [
    *(
        "yes No ON off y N true False null ~ NULL 1e3 1.0 0o17 0x1f 017 1_000 1:30 .inf .nan".split()
        + "- -- --- ... ? : # & * !".split()
    ),
    *(
        "2001-01-01",
        "2001-12-14t21:59:43.10-05:00",
        "=",
        "<<",
        "",
        " ",
        "a ",
        " a",
        "a: b",
        "a #b",
        "a:",
        "'",
        '"',
        "%x",
        "@x",
    ),
    *(
        "a\nb",
        "a\nb\n",
        "a\nb\n\n",
        "\na",
        " a\nb",
        "\ta\nb",
        "a\n b ",
        "a\n \n",
        "\n",
        "\n\n",
        " \n ",
        "a\r\nb",
        "a\tb\nc",
    ),
    *(
        "한국어",
        "日本語。「引用」",
        "👩\u200d👩\u200d👧",
        "\x00\x07\x1b[2J",
        "\x7f\x85\xa0",
        "\u2028",
        "\ufeff",
        "\u202etxet",
        "\uffff",
    ),
    *(
        0,
        -0.0,
        1e16,
        1e-7,
        5e-324,
        1.7976931348623157e308,
        -(2**63),
        2**63 - 1,
        True,
        False,
        None,
        [],
        {},
        [[]],
        {"": {}},
    ),
    {"k" * 3000: {"k" * 600: ["v"]}, "yes": 1, "1": 2, "null": 3, "a\nb": "c", "~": 4},
    [[["deep"], {"a": [{"b": "c\nd\n"}]}], "e\n\n"],
]


@settings(deadline=None, max_examples=500)
@given(_VALUES)
def test_any_json_value_comes_back_unchanged(value: Json) -> None:
    _comes_back(value)


@pytest.mark.parametrize("value", TRICKY, ids=repr)
def test_what_other_readers_guess_at_comes_back_unchanged(value: Json) -> None:
    _comes_back(value)
    _comes_back([value])
    _comes_back({"key": value, "last": [value]})


def _comes_back(value: Json) -> None:
    text = write(value)
    for loader in _SLOW_AND_FAST:
        assert repr(read(text.encode(), loader)) == repr(value)
    # Readers of YAML 1.1, such as the original tool's scripts use, agree.
    assert repr(yaml.safe_load(text)) == repr(value)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from([*_MARKS, "- ", ": ", "\n  ", "? ", "\\ud800", "key: "]), max_size=20))
def test_both_parsers_read_the_same_or_one_refuses(parts: list[str]) -> None:
    slow, fast = (_read_or_code("".join(parts).encode(), loader) for loader in _SLOW_AND_FAST)
    assert slow == fast or "NotYaml" in (slow, fast)


def _read_or_code(data: bytes, loader: Any) -> str:
    try:
        return repr(read(data, loader))
    except InvalidInput as exc:
        return exc.code


def test_nothing_written_can_move_a_cursor() -> None:
    text = write({f"{chr(code)}k": f"v{chr(code)}\nw" for code in [*range(32), 127, 155, 0x202E, 0x2066]})
    assert all(char == "\n" or char.isprintable() for char in text.replace("\t", ""))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# only a comment\n", None),
        ("---\na: 1\n", {"a": 1}),
        ("a: yes\nb: no\nc: on\nd: Off\n", {"a": "yes", "b": "no", "c": "on", "d": "Off"}),
        (
            "[012, 0o17, 0x1f, 1_000, 1:30, +1, .5, 5., .inf, .nan]",
            "012 0o17 0x1f 1_000 1:30 +1 .5 5. .inf .nan".split(),
        ),
        ("- 2001-01-01\n- 2001-01-01 10:00:00\n", ["2001-01-01", "2001-01-01 10:00:00"]),
        ("[1, -1, 1.5, 1e3, 1.0E-2, -0.0]", [1, -1, 1.5, 1000.0, 0.01, -0.0]),
        ("[true, True, FALSE, null, Null, ~, ]", [True, True, False, None, None, None]),
        ("1: a\nyes: b\nnull: c\n<<: d\n", {"1": "a", "yes": "b", "null": "c", "<<": "d"}),
        ("a: 'yes'\nb: \"1\"\nc: |\n  1\n", {"a": "yes", "b": "1", "c": "1\n"}),
        ('{"json": [1, "two", {"three": null}]}', {"json": [1, "two", {"three": None}]}),
        ("a:\nb: ''\n", {"a": None, "b": ""}),
    ],
)
def test_only_json_is_more_than_text(text: str, value: Json) -> None:
    for loader in _SLOW_AND_FAST:
        assert repr(read(text.encode(), loader)) == repr(value)


BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))

HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "alias bomb": (BOMB, "AliasNotAllowed"),
    "self alias": ("&a [*a]", "AliasNotAllowed"),
    "anchor alone": ("a: &a 1", "AliasNotAllowed"),
    "alias as key": ("? *a\n: 1", "AliasNotAllowed"),
    "python object": ("!!python/object/apply:os.system [ls]", "UnsafeTag"),
    "standard tag": ("a: !!str 1", "UnsafeTag"),
    "own tag": ("a: !x {}", "UnsafeTag"),
    "tag on a key": ("!!str a: 1", "UnsafeTag"),
    "tag directive": ("%TAG ! tag:x,2000:\n--- 1\n", "UnsafeTag"),
    "tag directive after a comment": ("# x\n\n%TAG !a! b\n--- 1\n", "UnsafeTag"),
    "tag directive of a second document": ("a\n...\r%TAG !a! b\n--- 1\n", "UnsafeTag"),
    "list as key": ("? [a]\n: 1", "InvalidKey"),
    "object as key": ("{{a: 1}: 2}", "InvalidKey"),
    "nothing as key": ("?\n: 1", "InvalidKey"),
    "key twice": ("a: 1\nb: 2\na: 3\n", "DuplicateKey"),
    "key twice in quotes": ("x:\n  a: 1\n  'a': 1\n", "DuplicateKey"),
    "key twice as number": ("1: a\n'1': b\n", "DuplicateKey"),
    "65 deep": ("[" * 65 + "]" * 65, "TooDeep"),
    "100,000 deep": ("[" * 100_000, "TooDeep"),
    "2,000 deep in blocks": ("- " * 2000, "TooDeep"),
    "two documents": ("a: 1\n---\nb: 2\n", "NotYaml"),
    "a broken line": ("a: b: c\n", "NotYaml"),
    "a tab as indent": ("a:\n\tb: 1\n", "NotYaml"),
    "an open quote": ('a: "b\n', "NotYaml"),
    "a control character": ("a: \x07", "NotYaml"),
    "a lone surrogate in JSON": ('{"a": "\\ud800"}', "InvalidText"),
    "2^63": ("a: 9223372036854775808", "NumberOutOfRange"),
    "5,000 digits": ("9" * 5000, "NumberOutOfRange"),
    "1e999": ("a: 1e999", "InvalidNumber"),
    "Latin-1": (b"a: \xe9", "NotUtf8"),
    "UTF-16": ("a: 1".encode("utf-16"), "NotUtf8"),
    "one byte too many": ("#" * (MAX_YAML + 1), "TooLarge"),
}


@pytest.mark.parametrize("loader", _SLOW_AND_FAST)
@pytest.mark.parametrize(("text", "code"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_yaml_is_refused_by_name(text: str | bytes, code: str, loader: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(text.encode() if isinstance(text, str) else text, loader)
    assert caught.value.code == code
    assert len(str(caught.value)) < 200


def test_tag_directives_never_reach_the_parser() -> None:
    """It takes quadratic time for them: each is compared with all before."""

    def parser(text: str) -> Any:
        pytest.fail("the parser was asked")

    with pytest.raises(InvalidInput, match="%TAG"):
        read("".join(f"%TAG !a{number}! b\n" for number in range(100)).encode(), parser)
    assert read(b"a: |\n  %TAG is text here\n") == {"a": "%TAG is text here\n"}


@pytest.mark.parametrize("loader", _SLOW_AND_FAST)
def test_a_lone_surrogate_is_refused_outside_json_too(loader: Any) -> None:
    with pytest.raises(InvalidInput):
        read(b'a: "\\ud800"', loader)


def test_json_is_read_with_the_escapes_that_yaml_lacks() -> None:
    assert read(b'{"a": "\\ud83c\\udf89\\/"}') == {"a": "🎉/"}
    assert read(b'{"a": "b", c: [d]}') == {"a": "b", "c": ["d"]}


def test_the_limits_themselves_are_allowed() -> None:
    assert read(b"#" * MAX_YAML) is None
    assert read(b"[" * 64 + b"]" * 64) is not None


def test_an_error_names_the_line_and_never_shows_the_text() -> None:
    with pytest.raises(InvalidInput, match=r"^line 2: ") as caught:
        read(b"token: hunter2\nsecret: hunter3: x\n")
    assert "hunter" not in str(caught.value)
