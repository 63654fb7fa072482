"""Values of the contract as documents and back, whatever they hold."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pabal import jsontext
from pabal.errors import InvalidInput
from pabal.mailbox import calls
from pabal.mailbox.commands import STORE_COMMANDS
from pabal.message import Message, replace
from pabal.store import (
    Checkable,
    Dead,
    Done,
    Draft,
    Entry,
    Failure,
    Finding,
    Lease,
    Receipt,
    Retry,
    Settlement,
    State,
    Store,
    Terms,
    Waitable,
)
from pabal.testing.codec_suite import messages

RECEIPT = Receipt("jobs", "m-1", "0123456789abcdef")
FAILURE = Failure("NACKED", "why\n한", 1.5, 3, "me")
ID = "0199c1d2-77aa-7d21-81a4-b49a3e7f5c10"
DRAFT = Draft("next", Message(id=ID, body=[1], type="t"), 2.5, False, Terms(10, 20, 30))


def over_the_wire(value: object, expected: type) -> object:
    return msgspec.json.decode(jsontext.encode(value), type=expected)


@given(messages(), st.floats(0, 1e6), st.booleans())
def test_any_draft_comes_back(message: Message, delay: float, given_id: bool) -> None:
    draft = Draft(
        "jobs", message, delay, given_id, failure=FAILURE if given_id else None
    )  # none of these ids was generated
    for kind in (calls.WireDraft, calls.PlainDraft):
        try:
            found = over_the_wire(calls.wire_draft(draft), kind)
        except msgspec.ValidationError:
            assert kind is calls.PlainDraft
            continue
        assert calls.draft_of(found) == replace(draft, given_id=True)  # type: ignore[arg-type]  # of that kind


def test_a_draft_of_a_request_that_may_be_repeated_has_a_given_id() -> None:
    found = over_the_wire(calls.wire_draft(DRAFT), calls.WireDraft)
    assert isinstance(found, calls.WireDraft)
    assert calls.draft_of(found) == DRAFT
    assert calls.draft_of(found, repeated=True).given_id


@pytest.mark.parametrize(
    "verdict",
    [Done(), Done((DRAFT,), FAILURE, True), Retry(5.0, FAILURE, (DRAFT,)), Retry(), Dead(FAILURE, (DRAFT, DRAFT))],
)
def test_any_settlement_comes_back(verdict: Done | Retry | Dead) -> None:
    settlement = Settlement(RECEIPT, verdict)
    found = over_the_wire(calls.wire_settlement(settlement), calls.WireSettlement)
    assert isinstance(found, calls.WireSettlement) and calls.settlement_of(found) == settlement


def test_leases_entries_and_findings_come_back() -> None:
    message = Message(id="m-1", body=b"\x00\xff", attributes={"priority": 3}, priority=0, created_at=5.25)
    lease = Lease(RECEIPT, message, 4, 6.5, FAILURE)
    found = over_the_wire(calls.wire_lease(lease), calls.WireLease)
    assert isinstance(found, calls.WireLease) and calls.lease_of(found) == lease
    for entry in (
        Entry("jobs", "m-1", State.INFLIGHT, 1, 2.5, message, FAILURE, b"", "cursor", "token"),
        Entry("jobs", "x", State.CORRUPT, data=b"\xff\x00", failure=FAILURE),
    ):
        shown = over_the_wire(calls.wire_entry(entry), calls.WireEntry)
        assert isinstance(shown, calls.WireEntry) and calls.entry_of(shown) == entry
    finding = Finding("here", "bad", "mend", True)
    assert over_the_wire([finding], calls.CHECK.result) == [finding]


@pytest.mark.parametrize(
    "change",
    [
        {"queue": "../x"},
        {"queue": "jobs", "delay": -1.0},
        {"queue": "jobs", "delay": 1e300},
        {"queue": "jobs", "terms": [300.0, 0, 0]},
        {"queue": "jobs", "terms": [300.0, 1 << 40]},
        {"queue": "jobs", "terms": [300.0, 1, -1]},
        {"queue": "jobs", "terms": [-1.0]},
        {"message": {"messageId": "a/b"}},
        {"message": {"payload": 2**70}},
        {"message": {"payload": 5, "payloadEncoding": "base64"}},
        {"message": {"payload": "!", "payloadEncoding": "base64"}},
        {"message": {"payloadEncoding": "rot13"}},
        {"message": {"target": "../x"}},
        {"message": {"priority": 101}},
        {"message": {"timestamp": "0001-01-01T00:00:00Z"}},
        {"message": {"headers": {"a\n": "b"}}},
    ],
)
def test_a_draft_from_outside_is_checked(change: dict[str, object]) -> None:
    whole = {"queue": "jobs", "message": {"messageId": "m", "timestamp": "2026-01-01T00:00:00Z", "payload": 1}}
    inner = change.pop("message", {})
    assert isinstance(inner, dict)
    document = {**whole, **change, "message": {**whole["message"], **inner}}  # type: ignore[dict-item]  # a dict
    for kind in (calls.WireDraft, calls.PlainDraft):
        try:
            found = over_the_wire(document, kind)
        except msgspec.ValidationError:
            continue
        with pytest.raises(InvalidInput):
            calls.draft_of(found)  # type: ignore[arg-type]  # of that kind


@pytest.mark.parametrize(
    "text", ["", "jobs", "jobs/m", "jobs/m/", "a/b/c/d", "../m/t", "jobs/m/~", "jobs/m/" + "t" * 65]
)
def test_a_receipt_from_outside_is_checked(text: str) -> None:
    with pytest.raises(InvalidInput):
        calls.receipt_of(text)


@pytest.mark.parametrize("verdict", ["", "DONE", "dead", "gone"])
def test_a_verdict_from_outside_is_checked(verdict: str) -> None:
    with pytest.raises(InvalidInput):
        calls.settlement_of(calls.WireSettlement(str(RECEIPT), verdict))


def test_every_method_of_the_contract_is_a_call_that_the_manager_serves() -> None:
    rows = [row for row in vars(calls).values() if isinstance(row, calls.Call)]
    served = {*Store.__dict__, *Waitable.__dict__, *Checkable.__dict__}
    methods = {name for name in served if not name.startswith("_")} - {"close"}
    assert {row.method for row in rows} == methods
    assert {row.command for row in rows} == {*STORE_COMMANDS}


def test_a_draft_on_the_wire_has_the_fields_of_a_draft() -> None:
    assert (*calls.WireDraft.__struct_fields__, "copies") == Draft.__struct_fields__
    assert (*calls.PlainDraft.__struct_fields__, "failure", "copies") == Draft.__struct_fields__
    assert calls.WireLease.__struct_fields__ == Lease.__struct_fields__
    assert calls.WireEntry._fields == Entry._fields
