"""The state of a message in its file: the words of the format, and nothing else touched."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from pabal.codec import Codec, Restatable
from pabal.codecs.mime import MimeCodec
from pabal.codecs.mime.document import as_json
from pabal.codecs.mime.fields import read_head
from pabal.errors import DecodeError
from pabal.message import Message
from pabal.store import State
from pabal.stores.files import FileStore
from pabal.stores.layout import NativeLayout
from pabal.testing import ManualClock
from pabal.testing.store_place import ack, bury, publish, retry, take_one

CODEC = MimeCodec()
FRESH = CODEC.encode(Message(id="m", body={"goal": "x"}, type="user_goal", sender="user"), queue="leader")
AT = 1_770_692_400.0


def words(data: bytes) -> dict[str, str]:
    moving = ("status", "processed_at", "retry_count", "last_retry_at", "error_reason", "error_at")
    return {name: value for name, value in as_json(data).items() if name in moving and value}


def test_a_file_that_nobody_took_has_no_status() -> None:
    assert isinstance(CODEC, Restatable)
    assert CODEC.restate(FRESH, "ready", at=AT) == FRESH
    assert CODEC.restate(FRESH, "delayed", at=AT) == FRESH


def test_a_file_tells_its_life() -> None:
    held = CODEC.restate(FRESH, "inflight", at=AT)
    assert words(held) == {"status": "processing", "processed_at": "2026-02-10T03:00:00+00:00"}
    back = CODEC.restate(held, "delayed", at=AT + 60, reason="no answer\nin time")
    assert words(back) == {
        "status": "retrying",
        "processed_at": "2026-02-10T03:00:00+00:00",
        "retry_count": "1",
        "last_retry_at": "2026-02-10T03:01:00+00:00",
        "error_reason": "no answer in time",
        "error_at": "2026-02-10T03:01:00+00:00",
    }
    again = CODEC.restate(CODEC.restate(back, "inflight", at=AT), "ready", at=AT)
    assert words(again)["retry_count"] == "2"
    dead = CODEC.restate(CODEC.restate(again, "inflight", at=AT), "dead", at=AT, reason="gave up")
    assert (words(dead)["status"], words(dead)["error_reason"]) == ("dead_letter", "gave up")
    assert words(CODEC.restate(dead, "ready", at=AT))["status"] == "queued"
    done = CODEC.restate(held, "done", at=AT)
    assert words(done)["status"] == "completed"
    for data in (held, back, again, dead, done):
        assert CODEC.decode(data) == CODEC.decode(FRESH)
        assert data[read_head(data).size :] == FRESH[read_head(FRESH).size :]


@pytest.mark.parametrize("state", list(State))
def test_saying_a_state_twice_changes_nothing(state: State) -> None:
    once = CODEC.restate(CODEC.restate(FRESH, "inflight", at=AT), state, at=AT, reason="r")
    assert CODEC.restate(once, state, at=AT + 100, reason="other") == once


def test_delivered_is_kept_while_it_is_in_hand() -> None:
    delivered = CODEC.restate(FRESH, "inflight", at=AT).replace(b"processing", b"delivered")
    assert CODEC.restate(delivered, "inflight", at=AT + 1) == delivered


def test_what_has_no_headers_cannot_say_its_state() -> None:
    with pytest.raises(DecodeError):
        CODEC.restate(b"no message", "inflight", at=AT)


@dataclass(frozen=True, kw_only=True)
class Plain(NativeLayout):
    codec: Codec = CODEC
    native: bool = False
    mirror: bool = True


def test_a_file_store_carries_mime_files_through_their_life(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FileStore(tmp_path, clock=clock, layout=Plain())

    def found(folder: str) -> dict[str, str]:
        (name,) = (name for name in os.listdir(tmp_path / "jobs" / folder) if name.endswith(".mime"))
        return words((tmp_path / "jobs" / folder / name).read_bytes())

    publish(store, {"n": 1}, id="one")
    assert found("ready") == {}
    lease = take_one(store)
    assert found("inflight")["status"] == "processing"
    retry(store, lease, delay=10)
    assert (found("delayed")["status"], found("delayed")["retry_count"]) == ("retrying", "1")
    clock.advance(11)
    lease = take_one(store)
    assert lease.message.body == {"n": 1}
    bury(store, lease)
    assert found("dead")["status"] == "dead_letter"
    assert store.revive("jobs", ["one"]) == ["one"]
    assert found("ready")["status"] == "queued"
    ack(store, take_one(store))
    assert found("done")["status"] == "completed"
    store.close()
