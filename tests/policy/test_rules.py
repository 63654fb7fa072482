"""Rules for the fields of a body: each kind, what it says nothing of, and how a refusal reads."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import pabal
from pabal.errors import InvalidPolicy, ValidationFailed
from pabal.policy.policy import DeadLetterPolicy, Policy, policy_from
from pabal.policy.rules import MessageSchema
from pabal.policy.validation import checker, rule_checker
from pabal.store import State


def schema(*rules: dict[str, Any]) -> MessageSchema:
    return msgspec.convert({"name": "telemetry", "rules": list(rules)}, MessageSchema)


def refusal(rule: dict[str, Any], body: object) -> str:
    """Return what is said against the body; '' if nothing."""
    try:
        rule_checker(schema(rule))(body)
    except ValidationFailed as exc:
        return str(exc)
    return ""


@pytest.mark.parametrize(
    ("rule", "good", "bad", "says"),
    [
        ({"type": "required"}, {"x": None}, {"y": 1}, "x: it is missing"),
        ({"type": "type", "expectedType": "string"}, "a", 1, "x: must be string; found number"),
        ({"type": "type", "expectedType": "number"}, 1.5, True, "x: must be number; found boolean"),
        ({"type": "type", "expectedType": "boolean"}, False, 0, "x: must be boolean; found number"),
        ({"type": "type", "expectedType": "array"}, [], {}, "x: must be array; found object"),
        ({"type": "type", "expectedType": "object"}, {}, [], "x: must be object; found array"),
        ({"type": "type", "expectedType": "null"}, None, "", "x: must be null; found string"),
        ({"type": "minLength", "value": 3}, "abc", "ab", "x: must have 3 characters at least; found string"),
        ({"type": "maxLength", "value": 3}, "한국어", "abcd", "x: must have 3 characters at most; found string"),
        ({"type": "minValue", "value": -40}, -40, -40.5, "x: must be -40 at least; found number"),
        ({"type": "maxValue", "value": 12.5}, 12.5, 13, "x: must be 12.5 at most; found number"),
        ({"type": "pattern", "value": "^[A-Z]{2}-[0-9]+$"}, "AB-1", "AB1", "x: must match ^[A-Z]{2}-[0-9]+$; found"),
        ({"type": "enum", "values": ["on", 1]}, 1, True, "x: must be one of 'on', 1; found boolean"),
        ({"type": "custom", "validator": "uuid"}, "0199c1d2-77aa-7d21-a1a4-b49a3e7f5c10", "1", "x: must be uuid"),
        ({"type": "custom", "validator": "date-time"}, "2026-01-13T10:21:00+09:00", "soon", "x: must be date-time"),
        ({"type": "custom", "validator": "email"}, "a@b.example", "a@b", "x: must be email"),
        ({"type": "custom", "validator": "ip"}, "::1", "1.2.3", "x: must be ip"),
        ({"type": "custom", "validator": "integer"}, 3.0, 3.5, "x: must be integer"),
        ({"type": "custom", "validator": "nonempty"}, [0], [], "x: must be nonempty"),
    ],
)
def test_each_rule_lets_the_good_in_and_says_what_is_wrong_with_the_bad(
    rule: dict[str, Any], good: object, bad: object, says: str
) -> None:
    rule = {"field": "x", **rule}
    good, bad = (good, bad) if rule["type"] == "required" else ({"x": good}, {"x": bad})
    assert refusal(rule, good) == ""
    assert refusal(rule, bad).startswith(says)


@pytest.mark.parametrize(
    "rule",
    [
        {"type": "minLength", "value": 3},
        {"type": "maxValue", "value": 3},
        {"type": "pattern", "value": "^a"},
        {"type": "enum", "values": []},
        {"type": "custom", "validator": "uuid"},
        {"type": "type", "expectedType": "string"},
    ],
)
def test_a_field_that_is_not_there_breaks_no_rule_but_required(rule: dict[str, Any]) -> None:
    assert refusal({"field": "x", **rule}, {"y": 1}) == ""
    assert refusal({"field": "x", **rule}, ["no", "object"]) == ""


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ({"type": "minLength", "value": 3}, 42),
        ({"type": "minValue", "value": 3}, "a"),
        ({"type": "pattern", "value": "a"}, 1),
    ],
)
def test_a_value_of_another_kind_breaks_only_the_rule_of_type(rule: dict[str, Any], value: object) -> None:
    assert refusal({"field": "x", **rule}, {"x": value}) == ""


def test_fields_lie_at_paths() -> None:
    rule = {"field": "device.id", "type": "required"}
    assert refusal(rule, {"device": {"id": 1}}) == refusal(rule, {"device.id": 1}) == ""
    assert refusal(rule, {"device": 1}) == "device.id: it is missing"


def test_all_that_is_wrong_is_said_at_once_and_in_the_operators_words() -> None:
    check = rule_checker(
        schema(
            {"field": "a", "type": "required", "errorMessage": "where is a?"},
            {"field": "b", "type": "type", "expectedType": "string"},
        )
    )
    with pytest.raises(ValidationFailed, match=r"^where is a\?; b: must be string; found number$"):
        check({"b": 1})


def test_a_refusal_does_not_repeat_what_the_message_holds() -> None:
    assert "secret" not in refusal({"field": "x", "type": "maxLength", "value": 3}, {"x": "secret"})


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"field": "", "type": "required"}, "needs the name of a field"),
        ({"field": "x", "type": "type"}, "needs `expectedType`"),
        ({"field": "x", "type": "required", "value": 3}, "has no `value`"),
        ({"field": "x", "type": "minLength", "value": -1}, "whole number from 0"),
        ({"field": "x", "type": "minValue", "value": "3"}, "must be a number"),
        ({"field": "x", "type": "pattern", "value": "("}, "no regular expression"),
        ({"field": "x", "type": "pattern", "value": 3}, "no regular expression"),
        ({"field": "x", "type": "enum"}, "needs `values`"),
        ({"field": "x", "type": "custom"}, "needs `validator`"),
    ],
)
def test_a_rule_that_is_none_is_refused(rule: dict[str, Any], says: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        schema(rule)
    assert says in str(caught.value)


def test_a_validator_that_nobody_offers_is_refused_when_the_policy_is_set(tmp_path: Path) -> None:
    odd = Policy(message_schema=schema({"field": "x", "type": "custom", "validator": "odd"}))
    with pabal.connect(f"sqlite:{tmp_path}/a.db") as mq, pytest.raises(InvalidPolicy, match="no validator 'odd'"):
        mq.queue("jobs").configure(odd)


@pytest.mark.parametrize("url", ["sqlite:{}/a.db", "file:{}/spool", "hybrid:{}/hybrid"])
def test_a_queue_refuses_what_breaks_its_rules_or_sends_it_to_the_dead_letters(url: str, tmp_path: Path) -> None:
    rules = schema({"field": "temp", "type": "required"})
    with pabal.connect(url.format(tmp_path)) as mq:
        jobs, graves = mq.queue("jobs"), mq.queue("graves")
        jobs.configure(Policy(message_schema=rules))
        with pytest.raises(ValidationFailed, match="temp: it is missing"):
            jobs.publish({"rpm": 1})
        assert jobs.counts().get(State.READY, 0) == 0
        jobs.configure(
            Policy(message_schema=rules, on_invalid="dead-letter", dead_letters=DeadLetterPolicy(queue="graves"))
        )
        published = jobs.publish_many([{"rpm": 1}, {"temp": 2}], type="reading")
        assert [each.dead for each in published] == [True, False]
        [good], [grave] = jobs.lease(10), graves.lease(10)
        assert good.body == {"temp": 2}
        [entry] = jobs.browse(State.DEAD)
        assert entry.id == published[0].id and entry.failure is not None and entry.message is not None
        assert (entry.failure.code, entry.failure.reason) == ("VALIDATION_ERROR", "temp: it is missing")
        assert jobs.store.counters("jobs").dead["VALIDATION_ERROR"] == 1
        # As a follow-up too.
        good.ack(then=[jobs.draft({"rpm": 3}), jobs.draft({"temp": 4})])
        assert jobs.counts()[State.DEAD] == 2 and graves.counts()[State.READY] == 1
        assert jobs.revive([entry.id]) == [] and "temp: it is missing" in jobs.still_unfit(entry.id)
        jobs.configure(Policy())
        assert jobs.revive([entry.id]) == [entry.id]
        assert grave.body["failure"]["reasonCode"] == "VALIDATION_ERROR"
        assert grave.body["failure"]["reasonMessage"] == "temp: it is missing"
        assert grave.body["originalMessage"]["payload"] == {"rpm": 1}
        assert grave.body["originalMessage"]["type"] == "reading"
        assert grave.body["routing"] == {"sourceQueue": "jobs", "dlqQueue": "graves"}


@pytest.mark.parametrize("url", ["sqlite:{}/a.db", "file:{}/spool", "hybrid:{}/hybrid"])
def test_failures_in_a_row_are_counted_while_they_are_the_same(url: str, tmp_path: Path) -> None:
    with pabal.connect(url.format(tmp_path)) as mq:
        jobs = mq.queue("jobs")
        jobs.configure(Policy(retry=pabal.RetryPolicy(limit=100, poison_limit=3)))
        jobs.publish(1, id="one")
        for reason in ("a", "a", "b", "a", "a", "a"):
            [delivery] = jobs.lease()
            delivery.nack(delay=0, reason=reason)
        [entry] = jobs.browse(State.DEAD)
        assert entry.failure is not None
        assert (entry.failure.code, entry.failure.reason) == ("POISON", "3 times in a row: NACKED: a")
        assert entry.attempt == 6


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+",
        "(a*)*b",
        r"^(\w+\s?)*$",
        "(?:a+)+",
        "((a+))+",
        "(a+|b)+",
        "(x*)+?y",
        "(a{2,})+",
        "(a+b?)*",
        "(?:(?:ab)+)+",
    ],
)
def test_a_pattern_of_exponential_time_is_refused(pattern: str) -> None:
    rule = {"field": "a", "type": "pattern", "value": pattern}
    with pytest.raises(InvalidPolicy, match="exponential"):
        policy_from({"messageSchema": {"rules": [rule]}})
    with pytest.raises(InvalidPolicy, match="exponential"):
        checker({"properties": {"a": {"type": "string", "pattern": pattern}}})
    with pytest.raises(InvalidPolicy, match="exponential"):
        checker({"patternProperties": {pattern: {}}})


@pytest.mark.parametrize(
    "pattern",
    [
        r"([a-z]+\.)*x",
        r"[^@\s]{1,64}@[^@\s.]+(\.[^@\s.]+)+",
        "a+b*c?",
        "(a+b)+",
        "(a|b)+",
        "(ab)*",
        "(a+)?",
        "(a+){3}",
        r"(\d+,)*\d+",
        "((ab)+c)*",
    ],
)
def test_other_repeats_are_allowed(pattern: str) -> None:
    policy_from({"messageSchema": {"rules": [{"field": "a", "type": "pattern", "value": pattern}]}})
    checker({"properties": {"a": {"pattern": pattern}}})


def test_a_pattern_is_tried_on_a_bounded_text() -> None:
    policy = policy_from({"messageSchema": {"rules": [{"field": "a", "type": "pattern", "value": "[0-9]+$"}]}})
    assert policy.message_schema is not None
    check = rule_checker(policy.message_schema)
    check({"a": "1" * 10_000})
    with pytest.raises(ValidationFailed, match="10000 characters at most"):
        check({"a": "1" * 1_000_000})
