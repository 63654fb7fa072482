"""`pabal ack`, `nack` and `extend-lease`: by receipt, harmless when repeated, refused when lost."""

import json
import time

import pytest

from tests.cli.command import Pabal


def leased(pabal: Pabal, *options: str) -> str:
    found: str = json.loads(pabal.ok("consume", "jobs", "--json", *options))["receipt"]
    return found


@pytest.fixture
def receipt(any_pabal: Pabal) -> str:
    any_pabal.ok("publish", "jobs", "1", "--id", "one")
    return leased(any_pabal)


def test_ack_settles_and_may_be_repeated(any_pabal: Pabal, receipt: str) -> None:
    assert any_pabal.ok("ack", receipt) == "done one"
    assert any_pabal.counts() == {"done": 1}
    assert any_pabal("ack", receipt).code == 0


def test_many_are_settled_even_if_one_is_lost(pabal: Pabal) -> None:
    for id in ("a", "b", "c"):
        pabal.ok("publish", "jobs", "1", "--id", id)
    receipts = [document["receipt"] for document in pabal("consume", "jobs", "--count", "3", "--json").documents]
    stale = "jobs/b/0123456789abcdef"
    ran = pabal("ack", receipts[0], stale, receipts[2])
    assert ran.code == 4
    assert ran.out == "done a\ndone c\n"
    assert ran.err.startswith("pabal: LeaseLost: ") and ran.err.count("\n") == 1
    assert pabal.counts() == {"done": 2, "inflight": 1}


def test_nack_follows_the_policy(any_pabal: Pabal, receipt: str) -> None:
    assert any_pabal.ok("nack", receipt, "--reason", "no such file").startswith("delayed one: ready in")
    found = json.loads(any_pabal.ok("show", "one", "--json"))
    assert (found["failure"]["code"], found["failure"]["reason"]) == ("NACKED", "no such file")


def test_nack_with_a_delay_comes_back_when_said(any_pabal: Pabal, receipt: str) -> None:
    assert any_pabal.ok("nack", receipt, "--delay", "0") == "ready one"
    assert json.loads(any_pabal.ok("consume", "jobs", "--json"))["attempt"] == 2


def test_bury_makes_it_dead_with_its_reason(any_pabal: Pabal, receipt: str) -> None:
    assert any_pabal.ok("nack", receipt, "--bury", "--reason", "hopeless") == "dead one"
    assert "hopeless" in any_pabal.ok("list-dlq", "jobs")


def test_a_failure_after_an_ack_is_refused(any_pabal: Pabal, receipt: str) -> None:
    any_pabal.ok("ack", receipt)
    for options in ((), ("--bury",)):
        ran = any_pabal("nack", receipt, *options)
        assert (ran.code, ran.out) == (4, "") and ran.err.startswith("pabal: LeaseLost: ")
    assert any_pabal.counts() == {"done": 1}
    assert json.loads(any_pabal.ok("metrics", "--json"))["queues"]["jobs"]["stale"] == 2


def test_bury_and_delay_exclude_each_other(pabal: Pabal) -> None:
    assert pabal("nack", "jobs/a/b", "--bury", "--delay", "1").code == 2


def test_nack_says_when_the_policy_keeps_no_dead(pabal: Pabal) -> None:
    pabal.ok("policy", "set", "jobs", "--set", "dlq.enabled=false", "--set", "retry.limit=1")
    pabal.ok("publish", "jobs", "1", "--id", "one")
    assert pabal.ok("nack", leased(pabal)).startswith("dropped one")


def test_extend_keeps_the_lease(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1", "--id", "one")
    receipt = leased(any_pabal, "--lease", "0.3")
    assert any_pabal.ok("extend-lease", receipt, "1m") == "extended one by 60s from now"
    time.sleep(0.4)  # the lease is counted on the system's own clock
    assert any_pabal("consume", "jobs").code == 1
    assert any_pabal("ack", receipt).code == 0


def test_a_lease_taken_over_is_lost(any_pabal: Pabal) -> None:
    any_pabal.ok("policy", "set", "jobs", "--set", "retry.initialDelaySec=0")
    any_pabal.ok("publish", "jobs", "1", "--id", "one")
    receipt = leased(any_pabal, "--lease", "0.1")
    time.sleep(0.15)  # likewise
    second = leased(any_pabal, "--wait", "5")
    for args in (["ack", receipt], ["nack", receipt], ["nack", receipt, "--bury"], ["extend-lease", receipt, "5"]):
        ran = any_pabal(*args)
        assert ran.code == 4, args
        assert ran.err.startswith("pabal: LeaseLost: ")
    assert any_pabal("ack", second).code == 0


@pytest.mark.parametrize("text", ["", "x", "a/b", "a/b/c/d", "//", "jobs//t", "jobs/a/\n", f"jobs/a/{'t' * 200}"])
def test_what_is_no_receipt_is_refused(pabal: Pabal, text: str) -> None:
    ran = pabal("ack", text)
    assert (ran.code, ran.err.split(":")[1]) == (2, " InvalidReceipt")


def test_a_receipt_cannot_name_a_path(pabal: Pabal) -> None:
    for text in ("../x/t", "jobs/../t", "jobs/a~b/t"):
        assert pabal("ack", text).code == 2


def test_a_bad_receipt_stops_all_before_any_is_settled(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "1")
    assert pabal("ack", leased(pabal), "nonsense").code == 2
    assert pabal.counts() == {"inflight": 1}


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_a_lease_is_extended_by_a_time_above_0(pabal: Pabal, seconds: str) -> None:
    assert pabal("extend-lease", "jobs/a/b", "--", seconds).code == 2


def test_cancel_says_which_were_waiting(any_pabal: Pabal) -> None:
    for id in ("a", "b"):
        any_pabal.ok("publish", "jobs", "1", "--id", id)
    held = json.loads(any_pabal.ok("consume", "jobs", "--json"))["id"]
    other = ({"a", "b"} - {held}).pop()
    assert any_pabal.ok("cancel", "jobs", "a", "b") == f"cancelled {other}"
    assert any_pabal("cancel", "jobs", "a", "b", "--json").code == 1
    assert any_pabal.ok("cancel", "jobs", held, "--inflight") == f"cancelled {held}"
    assert any_pabal("cancel", "nothing", "a").code == 3 and any_pabal.counts() == {"done": 2}
