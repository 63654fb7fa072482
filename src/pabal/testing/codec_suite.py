"""The laws of a codec as tests.

To test a codec, subclass `CodecSuite`:

    class TestMyCodec(CodecSuite):
        codec = MyCodec()
        golden = {Path("tests/codecs/golden/full.mine"): ("jobs", Message(id="m", body=1))}

`golden` lists files that a release wrote, each with the queue and the message in it; they never change.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pabal.codec import Codec
from pabal.errors import DecodeError
from pabal.jsontext import Json
from pabal.message import Message, check_message

# One law is run for every codec, each in its own class.
_LAW = settings(deadline=None, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow])

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_LINE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40)
_NAME = st.from_regex(r"\A[A-Za-z0-9_]([A-Za-z0-9_-]|\.(?=[A-Za-z0-9_-])){0,20}\Z")
_ID = st.from_regex(r"\A[A-Za-z0-9_]([A-Za-z0-9_:-]|\.(?=[A-Za-z0-9_:-])){0,40}\Z")
_INSTANT = st.integers(0, 253_402_300_799_000_000).map(lambda micros: micros / 1_000_000)


def _json_values() -> st.SearchStrategy[Json]:
    leaves = (
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    )
    return st.recursive(
        leaves | _TEXT,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
        max_leaves=12,
    )


def messages() -> st.SearchStrategy[Message]:
    """Give every kind of legal message."""
    return st.builds(
        Message,
        id=_ID,
        body=_json_values() | st.binary(max_size=60),
        type=_LINE,
        version=st.integers(0, 2**31),
        sender=st.just("") | _NAME,
        target=st.just("") | _NAME,
        attributes=st.dictionaries(_TEXT | st.just("priority"), _json_values(), max_size=3),
        headers=st.dictionaries(_LINE, _LINE, max_size=3),
        priority=st.integers(-100, 100),
        group=_LINE,
        dedup_key=_LINE,
        thread_id=_LINE,
        trace_id=_LINE,
        reply_to=_LINE,
        created_at=_INSTANT,
        expires_at=st.none() | _INSTANT,
    )


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Give the bytes with some of them changed, cut out, put in or doubled."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 20)))
        data[start:end] = draw(
            st.binary(max_size=4) | st.sampled_from([b"", b"\x00", b'"', b"{", b"null", data[start:end] * 2])
        )
    return bytes(data)


class CodecSuite:
    codec: ClassVar[Codec]
    golden: ClassVar[Mapping[Path, tuple[str, Message]]] = {}

    @_LAW
    @given(messages(), st.just("") | _NAME)
    def test_a_message_comes_back_as_it_was(self, message: Message, queue: str) -> None:
        data = self.codec.encode(message, queue=queue)
        assert self.codec.decode(data) == message

    @_LAW
    @given(messages(), st.just("") | _NAME)
    def test_our_own_bytes_come_back_by_the_short_way_too(self, message: Message, queue: str) -> None:
        data = self.codec.encode(message, queue=queue)
        found = self.codec.decode(data, own=True)
        assert found == message and type(found.body) is type(message.body)

    @_LAW
    @given(messages())
    def test_equal_messages_give_equal_bytes(self, message: Message) -> None:
        data = self.codec.encode(message, queue="jobs")
        assert self.codec.encode(copy.deepcopy(message), queue="jobs") == data
        assert self.codec.encode(self.codec.decode(data), queue="jobs") == data

    @_LAW
    @given(messages(), _ID, _INSTANT)
    def test_what_the_bytes_say_counts_before_what_the_caller_says(self, message: Message, id: str, at: float) -> None:
        assert self.codec.decode(self.codec.encode(message), id=id, at=at) == message

    @_LAW
    @given(st.binary(max_size=200), st.booleans())
    def test_any_bytes_give_a_message_or_decode_error(self, data: bytes, own: bool) -> None:
        self._message_or_error(data, own)

    @_LAW
    @given(st.data(), messages(), st.booleans())
    def test_damaged_bytes_give_a_message_or_decode_error(
        self, data: st.DataObject, message: Message, own: bool
    ) -> None:
        self._message_or_error(data.draw(damaged(self.codec.encode(message))), own)

    @_LAW
    @given(st.data(), messages())
    def test_whatever_is_accepted_is_legal_and_can_be_written_again(
        self, data: st.DataObject, message: Message
    ) -> None:
        found = self._message_or_error(data.draw(damaged(self.codec.encode(message))), own=False)
        assume(found)
        assert found is not None and check_message(found) is found
        assert self.codec.decode(self.codec.encode(found)) == found

    def test_golden_files_are_read_and_written_as_ever(self) -> None:
        for path, (queue, message) in self.golden.items():
            data = path.read_bytes()
            assert self.codec.decode(data) == message, path
            assert self.codec.encode(message, queue=queue) == data, path

    def _message_or_error(self, data: bytes, own: bool) -> Message | None:
        try:
            return self.codec.decode(data, id="given", at=1.0, own=own)
        except DecodeError as exc:
            assert exc.data == data and exc.reason
            return None
