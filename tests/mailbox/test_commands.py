"""The commands to the letter: payloads, data, codes, and what the policy makes of them."""

import logging
from typing import Any

import pytest

from pabal.mailbox.commands import COMMANDS
from pabal.message import replace
from pabal.policy.policy import DeadLetterPolicy, Policy, RetryPolicy
from pabal.store import State
from pabal.testing import ManualClock
from tests.mailbox.room import Room


def publish(room: Room, message: Any = None, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = room.good("publish", {"queue": "jobs", "message": message, **more})
    return found


def consume(room: Room, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = room.good("consume_next", {"queue": "jobs", **more})
    return found


def held(found: dict[str, Any]) -> dict[str, Any]:
    return {"messageKey": found["lease"]["messageKey"], "leaseId": found["lease"]["leaseId"]}


def test_publish_says_id_and_key(room: Room) -> None:
    found = publish(room, {"temp": 36.5})
    assert set(found) == {"messageId", "messageKey"}
    assert found["messageKey"] == f"msg:jobs:{found['messageId']}"
    assert room.store.find("jobs", found["messageId"])


@pytest.mark.parametrize(
    ("message", "body"),
    [
        ('{"temp": 36.5}', {"temp": 36.5}),
        ('"text"', "text"),
        ("[1, 2]", [1, 2]),
        ("null", None),
        ({"temp": 36.5}, {"temp": 36.5}),
        ([1], [1]),
        (5, 5),
        (None, None),
    ],
)
def test_text_is_json_text_and_anything_else_is_the_message(room: Room, message: Any, body: Any) -> None:
    publish(room, message)
    assert consume(room)["message"]["payload"] == body


def test_text_that_is_no_json_is_refused(room: Room) -> None:
    assert room.code("publish", {"queue": "jobs", "message": "hello"}) == "PARSE_ERROR"
    assert room.code("publish", {"queue": "jobs", "message": '{"a":1,"a":2}'}) == "PARSE_ERROR"


def test_publish_takes_everything_a_message_can_say(room: Room, clock: ManualClock) -> None:
    said = {
        "priority": 5,
        "attributes": {"zone": "north"},
        "targetConsumerId": "me",
        "messageId": "m-1",
        "type": "reading",
        "version": 2,
        "headers": {"a": "b"},
        "group": "g",
        "deduplicationKey": "k",
        "threadId": "t",
        "traceId": "tr",
        "replyTo": "answers",
        "ttlSec": 100,
    }
    publish(room, 1, **said)
    message = consume(room, consumerId="me")["message"]
    shown = {name: message.get(name) for name in said if name not in ("targetConsumerId", "ttlSec")}
    assert shown == {name: said[name] for name in shown}
    assert (message["target"], message["sender"], message["attempt"]) == ("me", "client", 1)
    assert message["createdAt"] == round(clock.now() * 1000)


@pytest.mark.parametrize("attributes", ['{"zone": 1}', {"zone": 1}])
def test_attributes_are_an_object_or_its_text(room: Room, attributes: Any) -> None:
    publish(room, 1, attributes=attributes)
    assert consume(room)["message"]["attributes"] == {"zone": 1}


@pytest.mark.parametrize("attributes", ["[1]", "5", [1]])
def test_other_attributes_are_refused(room: Room, attributes: Any) -> None:
    assert room.code("publish", {"queue": "jobs", "message": 1, "attributes": attributes}) == "ERR_INVALID_REQUEST"


def test_a_delayed_message_waits(room: Room, clock: ManualClock) -> None:
    publish(room, 1, delayMs=1500)
    assert consume(room) == {"message": None, "lease": None}
    clock.advance(1.6)
    assert consume(room)["message"]["payload"] == 1


def test_larger_priorities_come_first_and_then_the_order_of_requests(room: Room) -> None:
    requests = [room.request("publish", {"queue": "jobs", "message": n, "priority": n % 2}) for n in range(20)]
    name = room.drop(requests, "many.json")
    room.server.step()
    assert len(room.answer(name)) == 20
    got = [consume(room)["message"]["payload"] for _ in range(20)]
    assert got == [*range(1, 20, 2), *range(0, 20, 2)]


def test_a_target_is_the_only_one_who_gets_it(room: Room) -> None:
    publish(room, 1, targetConsumerId="me")
    assert consume(room, consumerId="you")["message"] is None
    assert consume(room, consumerId="me")["message"]["payload"] == 1


def test_consume_names_the_lease(room: Room, clock: ManualClock) -> None:
    published = publish(room, 1)
    lease = consume(room, consumerId="me", visibilityTimeoutSec=7)["lease"]
    assert lease["messageKey"] == published["messageKey"] and lease["consumerId"] == "me"
    assert lease["leaseUntil"] == round((clock.now() + 7) * 1000) and len(lease["leaseId"]) == 16


def test_the_lease_is_as_long_as_the_policy_says(room: Room, clock: ManualClock) -> None:
    room.connection.queue("jobs").configure(Policy(visibility=90))
    publish(room, 1)
    assert consume(room)["lease"]["leaseUntil"] == round((clock.now() + 90) * 1000)


def test_consume_can_take_several(room: Room) -> None:
    for n in range(5):
        publish(room, n)
    found = consume(room, limit=3)
    assert [each["message"]["payload"] for each in found["messages"]] == [0, 1, 2]
    assert found["message"]["payload"] == 0
    for each in found["messages"]:
        assert room.good("ack", held(each)) == {}
    assert room.code("consume", {"queue": "jobs", "limit": 0}) == "ERR_INVALID_REQUEST"


def test_the_default_consumer_is_the_client(room: Room) -> None:
    publish(room, 1)
    assert consume(room)["lease"]["consumerId"] == "client"


def test_ack_is_for_good_and_may_be_repeated(room: Room) -> None:
    publish(room, 1)
    lease = held(consume(room))
    assert room.good("ack", lease) == {} and room.good("ack", lease) == {}
    assert consume(room)["message"] is None


def test_a_late_ack_does_not_touch_what_another_holds(room: Room, clock: ManualClock) -> None:
    room.connection.queue("jobs").configure(Policy(retry=RetryPolicy(initial=0)))
    publish(room, 1)
    old = held(consume(room, visibilityTimeoutSec=5))
    clock.advance(6)
    new = held(consume(room))
    assert new["leaseId"] != old["leaseId"]
    for command in ("ack", "nack", "extend_lease"):
        assert room.code(command, old) == "LEASE_MISMATCH"
    assert room.good("ack", new) == {}


def test_lease_codes_say_what_became_of_it(room: Room) -> None:
    found = publish(room, 1)
    key = {"messageKey": found["messageKey"]}
    assert room.code("ack", {**key, "leaseId": "forged"}) == "LEASE_EXPIRED"
    lease = held(consume(room))
    assert room.code("ack", {**key, "leaseId": "forged"}) == "LEASE_MISMATCH"
    room.good("nack", lease)
    assert room.code("ack", lease) == "LEASE_EXPIRED"
    assert room.code("ack", {"messageKey": "msg:jobs:nobody", "leaseId": "x"}) == "MESSAGE_NOT_FOUND"
    assert room.code("nack", {"messageKey": "msg:jobs:nobody", "leaseId": "x"}) == "MESSAGE_NOT_FOUND"


def test_ack_of_a_ready_or_dead_message_changes_nothing(room: Room) -> None:
    found = publish(room, 1)
    assert room.code("ack", {"messageKey": found["messageKey"], "leaseId": "0" * 16}) == "LEASE_EXPIRED"
    assert room.store.counts("jobs")[State.READY] == 1
    room.good("nack", held(consume(room)))
    assert room.code("ack", {"messageKey": found["messageKey"], "leaseId": "0" * 16}) == "LEASE_EXPIRED"
    assert room.store.counts("jobs")[State.DEAD] == 1


def test_settling_without_a_lease_needs_force(room: Room) -> None:
    publish(room, 1)
    key = {"messageKey": consume(room)["lease"]["messageKey"]}
    assert room.code("ack", key) == "ERR_INVALID_REQUEST"
    assert room.good("ack", {**key, "force": True}) == {}
    assert room.store.counts("jobs")[State.DONE] == 1
    found = publish(room, 2)
    assert room.code("ack", {"messageKey": found["messageKey"], "force": True}) == "LEASE_EXPIRED"


def test_nack_with_requeue_follows_the_retry_policy(room: Room, clock: ManualClock) -> None:
    room.connection.queue("jobs").configure(Policy(retry=RetryPolicy(limit=2, initial=10)))
    publish(room, 1)
    lease = held(consume(room))
    nacked = {**lease, "requeue": True, "reason": "no luck"}
    assert room.good("nack", nacked) == room.good("nack", nacked) == {"state": "delayed", "delayMs": 10_000}
    assert consume(room)["message"] is None
    clock.advance(11)
    again = consume(room)
    assert again["message"]["attempt"] == 2
    room.good("nack", {**held(again), "requeue": True, "reason": "no luck"})
    [entry] = room.store.browse("jobs", State.DEAD)
    assert entry.failure and (entry.failure.code, entry.failure.consumer) == ("RETRY_LIMIT", "client")


def test_a_death_by_nack_is_logged_once(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    publish(room)
    lease = {**held(consume(room)), "reason": "broken"}
    with caplog.at_level(logging.WARNING, "pabal"):
        room.good("nack", lease)
        room.good("nack", lease)
    [record] = caplog.records
    assert "message dead: jobs/" in record.getMessage() and "NACKED 'broken'" in record.getMessage()


def test_nack_without_requeue_buries_at_once(room: Room) -> None:
    room.connection.queue("jobs").configure(Policy(dead_letters=DeadLetterPolicy(queue="jobs-dlq")))
    publish(room, 1)
    lease = held(consume(room))
    nacked = {**lease, "reason": "broken", "consumerId": "worker-7"}
    assert room.good("nack", nacked) == room.good("nack", nacked) == {"state": "dlq"}
    [listed] = room.good("list_dlq", {"queue": "jobs"})["messages"]
    assert (listed["reason"], listed["attempt"], listed["consumerId"]) == ("broken", 1, "worker-7")
    document = room.good("consume", {"queue": "jobs-dlq"})["message"]["payload"]
    assert document["failure"]["reasonMessage"] == "broken" and document["originalMessage"]["payload"] == 1
    assert document["routing"] == {"sourceQueue": "jobs", "dlqQueue": "jobs-dlq"}


def test_a_nack_where_dead_letters_are_dropped_is_done_once(room: Room) -> None:
    room.connection.queue("jobs").configure(Policy(dead_letters=DeadLetterPolicy(enabled=False)))
    publish(room, 1)
    lease = held(consume(room))
    assert room.good("nack", lease) == room.good("nack", lease) == {"state": "dropped"}
    assert room.store.counts("jobs")[State.DONE] == 1 and room.store.counts("jobs")[State.DEAD] == 0


def test_extend_lets_it_end_later(room: Room, clock: ManualClock) -> None:
    publish(room, 1)
    lease = held(consume(room, visibilityTimeoutSec=10))
    found = room.good("extend_lease", {**lease, "visibilityTimeoutSec": 100})
    assert found == {"leaseUntil": round((clock.now() + 100) * 1000)}
    clock.advance(50)
    assert consume(room)["message"] is None and room.good("ack", lease) == {}


def test_status_says_what_there_is_and_under_which_policy(room: Room) -> None:
    room.connection.queue("jobs").configure(Policy(visibility=77))
    for n in range(4):
        publish(room, n)
    consume(room)
    room.good("nack", held(consume(room)))
    publish(room, 5, delayMs=1000)
    found = room.good("status", {"queue": "jobs"})
    assert found["queue"] == "jobs" and found["policy"]["visibilityTimeoutSec"] == 77
    metrics = found["metrics"]
    assert {name: metrics[name] for name in ("ready", "inflight", "delayed", "dlq")} == {
        "ready": 2,
        "inflight": 1,
        "delayed": 1,
        "dlq": 1,
    }


def test_pause_and_resume(room: Room) -> None:
    publish(room, 1)
    assert room.good("pause", {"queue": "jobs"}) == {"queue": "jobs", "paused": True}
    assert consume(room)["message"] is None
    publish(room, 2)
    assert room.good("resume", {"queue": "jobs"}) == {"queue": "jobs", "paused": False}
    assert consume(room)["message"]["payload"] == 1


def test_a_paused_queue_says_so_at_once_and_after_a_wait(room: Room, clock: ManualClock) -> None:
    publish(room, 1)
    room.good("pause", {"queue": "jobs"})
    assert consume(room) == {"message": None, "lease": None, "paused": True}
    name = room.drop(room.request("consume", {"queue": "jobs", "waitMs": 1000}))
    room.server.step()
    assert room.answer(name) is None
    clock.advance(2)
    room.server.step()
    assert room.answer(name)["data"] == {"message": None, "lease": None, "paused": True}


@pytest.mark.parametrize("command", ["pause", "resume", "peek", "get_policy", "set_policy", "purge", "show"])
def test_a_mistyped_queue_is_refused_with_the_close_one_and_not_made(room: Room, command: str) -> None:
    publish(room, 1)
    needed: dict[str, dict[str, object]] = {"set_policy": {"policy": {}}, "purge": {"state": "ready"}}
    more = needed.get(command, {})
    payload = {"messageKey": "msg:jbos:x"} if command == "show" else {"queue": "jbos", **more}
    error = room.ask(command, payload)["error"]
    assert error["code"] == "QUEUE_NOT_FOUND" and error["message"] == "no queue jbos; did you mean jobs?"
    assert room.good("queues") == {"queues": ["jobs"]}


def test_a_queue_outside_of_the_configuration_is_refused_with_the_close_one(strict: Room) -> None:
    error = strict.ask("publish", {"queue": "jbos", "message": 1})["error"]
    assert error["message"] == "no queue jbos; did you mean jobs? in the configuration"
    assert strict.good("pause", {"queue": "jobs"})["paused"], "the configuration names it"


def test_nack_says_what_becomes_of_the_message(room: Room) -> None:
    for retry, expected in (
        ({"initialDelaySec": 4}, {"state": "delayed", "delayMs": 4000}),
        ({"initialDelaySec": 0}, {"state": "ready", "delayMs": 0}),
        ({"limit": 1}, {"state": "dlq"}),
    ):
        publish(room, 1)
        room.good("set_policy", {"queue": "jobs", "policy": {"retry": retry}, "replace": True})
        lease = consume(room)["lease"]
        held = {name: lease[name] for name in ("messageKey", "leaseId")}
        assert room.good("nack", {**held, "requeue": True}) == expected
        room.good("purge", {"queue": "jobs", "state": "ready"})
    publish(room, 2)
    room.good("set_policy", {"queue": "jobs", "policy": {"dlq": {"enabled": False}}})
    lease = consume(room)["lease"]
    held = {name: lease[name] for name in ("messageKey", "leaseId")}
    assert room.good("nack", held) == {"state": "dropped"}


def test_a_queue_is_made_looked_into_configured_and_emptied(room: Room) -> None:
    assert room.good("create_queue", {"queue": "jobs", "policy": {"retry": {"limit": 2}}})["created"] is True
    assert room.good("createqueue", {"queue": "jobs"}) == {"queue": "jobs", "created": False}
    assert room.good("queues") == {"queues": ["jobs"]}
    assert room.good("policy", {"queue": "jobs"})["policy"]["retry"]["limit"] == 2
    changed = room.good("set_policy", {"queue": "jobs", "policy": {"retry": {"maxDelaySec": 99}}})["policy"]["retry"]
    assert (changed["limit"], changed["maxDelaySec"]) == (2, 99)
    assert room.code("set_policy", {"queue": "jobs", "policy": {"retry": {"limit": 0}}}) == "ERR_INVALID_REQUEST"
    key = room.good("publish", {"queue": "jobs", "message": {"a": 1}, "type": "t"})["messageKey"]
    publish(room, 2)
    [first, second] = room.good("peek", {"queue": "jobs"})["messages"]
    assert first == room.good("show", {"messageKey": key})
    assert (first["payload"], first["state"], first["type"], first["attempt"]) == ({"a": 1}, "ready", "t", 0)
    assert second["payload"] == 2 and len(room.good("peek", {"queue": "jobs", "limit": 1})["messages"]) == 1
    lease = consume(room)["lease"]
    room.good("nack", {"messageKey": key, "leaseId": lease["leaseId"], "reason": "odd"})
    [dead] = room.good("peek", {"queue": "jobs", "states": ["dlq"]})["messages"]
    assert (dead["messageKey"], dead["reason"], dead["reasonCode"]) == (key, "odd", "NACKED")
    assert room.code("purge", {"queue": "jobs", "state": "inflight"}) == "ERR_INVALID_REQUEST"
    assert room.code("peek", {"queue": "jobs", "states": ["odd"]}) == "ERR_INVALID_REQUEST"
    assert room.good("purge", {"queue": "jobs", "state": "dead"})["purged"] == 1
    assert room.code("show", {"messageKey": key}) in ("MESSAGE_NOT_FOUND",)


def test_health_and_queues(room: Room, clock: ManualClock) -> None:
    publish(room, 1)
    room.extras["health"] = lambda: {"node": "n1"}
    assert room.good("health") == {"status": "ok", "timestamp": round(clock.now() * 1000), "node": "n1"}
    assert room.good("queues") == room.good("list_queues") == {"queues": ["jobs"]}


def test_metrics_count_what_was_answered(room: Room, clock: ManualClock) -> None:
    publish(room, 1)
    room.code("publish", {"queue": "jobs", "message": "bad"})
    room.code("nonsense")
    room.code("publish", {"queue": "jobs", "message": 1}, deadlineMs=1)
    clock.advance(2)
    found = room.good("metrics")
    assert found["requests"] == {"total": 4, "success": 1, "error": 3}
    assert found["commands"] == {"publish": 3, "unknown": 1} and found["uptimeMs"] == 2000
    errors = {name: found["errors"][name] for name in ("parse", "validation", "timeout", "internal")}
    assert errors == {"parse": 2, "validation": 0, "timeout": 1, "internal": 0}
    assert set(found["timing"]) == {"total", "avg", "last"}


def test_a_body_that_does_not_fit_is_refused_and_says_why(room: Room) -> None:
    schema: dict[str, Any] = {"type": "object", "required": ["temp"], "properties": {"temp": {"type": "number"}}}
    room.connection.queue("jobs").configure(Policy(body_schema=schema))
    answer = room.ask("publish", {"queue": "jobs", "message": {"temp": "hot"}})
    assert answer["error"]["code"] == "VALIDATION_FAILED" and "temp" in answer["error"]["message"]
    publish(room, {"temp": 1})


def test_a_policy_may_take_invalid_messages_as_dead_letters(room: Room, clock: ManualClock) -> None:
    policy = Policy(
        body_schema={"type": "object"}, on_invalid="dead-letter", dead_letters=DeadLetterPolicy(queue="bad")
    )
    room.connection.queue("jobs").configure(policy)
    found = publish(room, [1], messageId="unfit")
    assert found["deadLettered"] and found["messageKey"] == "msg:jobs:unfit" and "object" in found["reason"]
    assert room.good("consume", {"queue": "bad"})["message"]["payload"]["originalMessage"]["payload"] == [1]
    # It is a dead letter of its own queue like every other.
    [listed] = room.good("list_dlq", {"queue": "jobs"})["messages"]
    assert (listed["messageKey"], listed["reasonCode"]) == ("msg:jobs:unfit", "VALIDATION_ERROR")
    assert room.good("count_dlq")["queues"] == {"jobs": {"VALIDATION_ERROR": 1}}
    assert room.good("status", {"queue": "jobs"})["metrics"]["dlq"] == 1
    assert room.store.counters("jobs").dead["VALIDATION_ERROR"] == 1
    assert publish(room, [1], messageId="unfit")["duplicate"]
    # It can be reprocessed when the schema fits it, and not before.
    assert room.code("reprocess_dlq", {"messageKey": "msg:jobs:unfit"}) == "VALIDATION_FAILED"
    assert room.good("reprocess_dlq", {"queue": "jobs"})["reprocessed"] == 0
    room.connection.queue("jobs").configure(replace(policy, body_schema={"type": "array"}))
    clock.advance(2)
    assert room.good("reprocess_dlq", {"messageKey": "msg:jobs:unfit"})["reprocessed"]
    assert consume(room)["message"]["payload"] == [1]


@pytest.mark.parametrize(
    ("command", "payload"),
    [
        ("publish", {}),
        ("publish", {"queue": "jobs"}),
        ("publish", {"queue": 5, "message": 1}),
        ("publish", {"queue": "../x", "message": 1}),
        ("publish", {"queue": "jobs", "message": 1, "priority": 101}),
        ("publish", {"queue": "jobs", "message": 1, "priority": "urgent"}),
        ("publish", {"queue": "jobs", "message": 1, "delayMs": -1}),
        ("publish", {"queue": "jobs", "message": 1, "delayMS": 5}),
        ("publish", {"queue": "jobs", "message": 1, "messageId": "a/b"}),
        ("publish", {"queue": "jobs", "message": 1, "targetConsumerId": "../x"}),
        ("consume_next", {}),
        ("consume_next", {"queue": "jobs", "consumerId": "../x"}),
        ("consume_next", {"queue": "jobs", "visibilityTimeoutSec": 0}),
        ("consume_next", {"queue": "jobs", "waitMs": -5}),
        ("ack", {"leaseId": "x"}),
        ("ack", {"messageKey": "jobs:m", "leaseId": "x"}),
        ("ack", {"messageKey": "msg:jobs:", "leaseId": "x"}),
        ("ack", {"messageKey": "msg:../x:m", "leaseId": "x"}),
        ("ack", {"messageKey": "msg:jobs:m", "leaseId": "../x"}),
        ("extend_lease", {"messageKey": "msg:jobs:m", "leaseId": "x", "visibilityTimeoutSec": -1}),
        ("status", {}),
        ("list_dlq", {"queue": "jobs", "limit": 0}),
        ("reprocess_dlq", {}),
    ],
)
def test_a_wrong_payload_is_refused_and_nothing_is_done(room: Room, command: str, payload: Any) -> None:
    assert room.code(command, payload) == "ERR_INVALID_REQUEST"
    assert room.store.queues() == []


def test_an_unknown_command_is_refused(room: Room) -> None:
    assert room.code("destroy") == "UNKNOWN_COMMAND"


def test_a_queue_that_the_configuration_does_not_name_is_unknown(strict: Room) -> None:
    strict.good("publish", {"queue": "jobs", "message": 1})
    for command in ("publish", "consume", "status", "list_dlq", "pause", "purge_dlq"):
        payload = {"queue": "other", **({"message": 1} if command == "publish" else {})}
        assert strict.code(command, payload) == "QUEUE_NOT_FOUND"
    assert strict.code("ack", {"messageKey": "msg:other:m", "leaseId": "x"}) == "QUEUE_NOT_FOUND"
    assert strict.good("queues") == {"queues": ["jobs"]}


def test_what_lies_in_a_queue_that_the_configuration_does_not_name_is_counted(strict: Room) -> None:
    strict.connection.queue("other").publish(1)
    for queue in strict.good("queues")["queues"]:
        assert strict.good("status", {"queue": queue})["metrics"]["ready"] == (queue == "other")
    assert strict.code("consume", {"queue": "other"}) == "QUEUE_NOT_FOUND"


def test_a_message_too_large_or_a_queue_too_full_is_refused(room: Room) -> None:
    room.connection.queue("jobs").configure(Policy(max_bytes=1000, max_waiting=1))
    answer = room.ask("publish", {"queue": "jobs", "message": {"t": "x" * 2000}})
    assert (answer["error"]["code"], answer["error"]["type"]) == ("ERR_INVALID_REQUEST", "TooLarge")
    publish(room, 1)
    answer = room.ask("publish", {"queue": "jobs", "message": 2})
    assert (answer["error"]["code"], answer["error"]["type"]) == ("QUEUE_FULL", "QueueFull")


def test_no_refusal_shows_the_body(room: Room) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "number"}}}
    room.connection.queue("jobs").configure(Policy(body_schema=schema))
    for message in ({"a": "s3cret"}, "s3cret", '{"a": s3cret'):
        answer = room.ask("publish", {"queue": "jobs", "message": message})
        assert not answer["ok"] and "s3cret" not in str(answer)


def test_every_command_of_the_seed_is_there() -> None:
    seed = "publish consume_next ack nack extend_lease status health metrics list_dlq reprocess_dlq"
    assert set(seed.split()) <= set(COMMANDS)


def test_the_holder_of_a_message_is_the_client_and_its_death_names_it(room: Room, clock: ManualClock) -> None:
    room.connection.queue("jobs").configure(Policy(retry=RetryPolicy(limit=1)))
    for n in range(4):
        publish(room, n)
    room.good("consume_next", {"queue": "jobs", "visibilityTimeoutSec": 10}, client="press-1")
    room.good("consume_next", {"queue": "jobs", "visibilityTimeoutSec": 10}, client="press-1")
    consume(room, consumerId="worker-7", visibilityTimeoutSec=10)
    room.good("store.lease", {"queue": "jobs", "limit": 1, "seconds": 10, "consumer": "library"})
    found = {each["consumerId"]: each for each in room.good("consumers")["consumers"]}
    assert {name: each["holds"][0]["messages"] for name, each in found.items()} == {
        "press-1": 2,
        "worker-7": 1,
        "library": 1,
    }
    assert all(each["pid"] is None and each["host"] for each in found.values())
    assert found["press-1"]["holds"][0]["since"] == round(clock.now() * 1000)
    clock.advance(20)
    room.restart()  # also another server knows them, from the register of the store
    room.connection.queue("jobs").sweep()
    listed = room.good("list_dlq", {"queue": "jobs"})["messages"]
    assert sorted(each["consumerId"] for each in listed) == ["library", "press-1", "press-1", "worker-7"]
    assert {each["reasonCode"] for each in listed} == {"RETRY_LIMIT"}


def test_a_queue_of_the_configuration_is_not_deleted(strict: Room) -> None:
    strict.good("publish", {"queue": "jobs", "message": 1})
    assert strict.code("delete_queue", {"queue": "jobs", "force": True}) == "ERR_INVALID_REQUEST"
    assert strict.code("store.delete", {"queue": "jobs", "force": True}) == "ERR_INVALID_REQUEST"
    assert strict.store.counts("jobs")[State.READY] == 1


def test_cancel_takes_back_what_waits(room: Room) -> None:
    for n in range(3):
        publish(room, n, messageId=f"m-{n}")
    held = consume(room)["message"]["messageId"]
    ids = ["m-0", "m-1", "nobody"]
    waiting = [id for id in ids[:2] if id != held]
    assert room.good("cancel", {"queue": "jobs", "messageIds": ids})["cancelled"] == waiting
    assert room.good("cancel", {"queue": "jobs", "messageIds": ids, "inflight": True})["cancelled"] == [held]
    assert room.code("cancel", {"queue": "jobs", "messageIds": ["../x"]}) == "ERR_INVALID_REQUEST"


def test_an_ack_may_carry_the_reply(room: Room) -> None:
    """A client of another language answers a request of the library in one step (G15)."""
    requests, replies = room.connection.queue("jobs"), room.connection.queue("jobs.replies")
    requests.publish(20, id="r", reply_to="jobs.replies", trace_id="t")
    held = consume(room)
    settle = {"messageKey": held["lease"]["messageKey"], "leaseId": held["lease"]["leaseId"]}
    forged = {**settle, "leaseId": "0123456789abcdef", "reply": "forged"}
    assert room.code("ack", forged) == "LEASE_MISMATCH" and replies.counts()[State.READY] == 0
    room.good("ack", {**settle, "reply": {"sum": 21}, "replyType": "sum"})
    room.good("ack", {**settle, "reply": {"sum": 21}})  # repeated
    [entry] = replies.browse(State.READY)
    assert entry.message is not None and entry.id == "r.reply" and entry.message.body == {"sum": 21}
    assert (entry.message.type, entry.message.trace_id) == ("sum", "t")
    assert requests.request(20, timeout=60, id="r") == {"sum": 21}
    # Null is a reply too; a message without replyTo takes none.
    requests.publish(1, id="n", reply_to="jobs.replies")
    held = consume(room)
    settle = {"messageKey": held["lease"]["messageKey"], "leaseId": held["lease"]["leaseId"]}
    room.good("ack", {**settle, "reply": None})
    assert requests.request(1, timeout=60, id="n") is None
    publish(room, 2, messageId="plain")
    held = consume(room)
    settle = {"messageKey": held["lease"]["messageKey"], "leaseId": held["lease"]["leaseId"]}
    assert room.code("ack", {**settle, "reply": 1}) == "ERR_INVALID_REQUEST"
    room.good("ack", settle)


def test_a_reply_goes_to_no_queue_that_the_configuration_does_not_know(strict: Room) -> None:
    queue = strict.connection.queue("jobs")
    for name, code in (("jobs.replies", ""), ("pabal.schedules", "QUEUE_NOT_FOUND")):
        queue.publish(1, reply_to=name)
        lease = consume(strict)["lease"]
        asked = {"messageKey": lease["messageKey"], "leaseId": lease["leaseId"], "reply": 1}
        assert not code or strict.code("ack", asked) == code
        if not code:
            strict.good("ack", asked)
        assert strict.store.counts(name)[State.READY] == (not code)


def test_unique_messages_and_schedules(room: Room, clock: ManualClock) -> None:
    first = publish(room, 1, uniqueKey="k")
    assert publish(room, 2, uniqueKey="k")["messageId"] == first["messageId"]
    terms = {"name": "ping", "queue": "jobs", "everySec": 60, "message": {"deep": True}}
    made = room.good("schedule", terms)
    assert made["nextAt"] % 60_000 == 0 and room.good("schedules")["schedules"] == [made]
    assert room.code("schedule", {**terms, "cron": "* * * * *"}) == "ERR_INVALID_REQUEST"
    clock.advance(61)
    room.connection.queue("jobs").sweep()  # as the manager does
    assert {consume(room)["message"]["messageId"][:4] for _ in range(2)} == {"ping", first["messageId"][:4]}
    assert room.good("unschedule", {"name": "ping"}) == {"name": "ping", "removed": True}
    assert room.code("unschedule", {"name": "ping"}) == "MESSAGE_NOT_FOUND"
