"""Gateways as processes: killed, several on one store, clients that go away, a stop in the middle; move tasks."""

import asyncio
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import pabal
import pabal.aio
from pabal.gateway.sqs.directory import Directory
from pabal.store import State
from pabal.testing import ManualClock
from tests.gateway.conftest import Running, client_of, gateway
from tests.waiting import until


def test_gateways_that_are_killed_lose_nothing_and_give_nothing_twice(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/jobs.db"
    sent: set[str] = set()
    maybe: set[str] = set()
    deleted: Counter[str] = Counter()
    ends = threading.Event()
    with gateway(url, tmp_path / "log") as one, gateway(url, tmp_path / "log") as two:
        queue = client_of(one.address).create_queue(QueueName="jobs", Attributes={"VisibilityTimeout": "6"})["QueueUrl"]

        def send(running: Running, name: str) -> None:
            sqs = client_of(running.address, connect_timeout=5, read_timeout=20)
            for number in range(150):
                body = f"{name}-{number}"
                try:
                    sent.add(sqs.send_message(QueueUrl=queue, MessageBody=body)["MessageId"])
                except Exception:  # its gateway was killed: it may be stored
                    maybe.add(body)
                    time.sleep(0.05)

        def take(running: Running) -> None:
            sqs = client_of(running.address, connect_timeout=5, read_timeout=20)
            while not ends.is_set():
                try:
                    asked = {"QueueUrl": queue, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 1}
                    for message in sqs.receive_message(**asked).get("Messages", []):
                        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
                        deleted[message["Body"]] += 1
                except Exception:
                    time.sleep(0.05)

        senders = [threading.Thread(target=send, args=(each, str(n))) for n, each in enumerate((one, two) * 2)]
        takers = [threading.Thread(target=take, args=(each,)) for each in (one, two)]
        for thread in (*senders, *takers):
            thread.start()
        for turn in range(4):
            time.sleep(0.4)
            (one, two)[turn % 2].kill()
            (one, two)[turn % 2].start()
        for thread in senders:
            thread.join()
        with pabal.connect(url) as mq:
            jobs = mq.queue("jobs")
            until(lambda: sum(count for state, count in jobs.counts().items() if state is not State.DONE) == 0)
            ends.set()
            for thread in takers:
                thread.join()
            done = {entry.id for entry in jobs.entries(State.DONE)}
    assert len(sent) > 300 and sent <= done and len(done) <= len(sent) + 2 * len(maybe)  # boto3 sends again by itself
    assert max(deleted.values()) == 1


def test_a_client_that_goes_away_leaves_the_message_to_others(served: Running, queue: str, sqs: Any) -> None:
    parts = urlsplit(served.address)
    body = json.dumps({"QueueUrl": queue, "WaitTimeSeconds": 20}).encode()
    head = f"POST / HTTP/1.1\r\nhost: {parts.netloc}\r\nx-amz-target: AmazonSQS.ReceiveMessage\r\n"
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as line:
        line.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(0.3)
    time.sleep(0.2)
    sqs.send_message(QueueUrl=queue, MessageBody="for the next")
    [message] = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=10, AttributeNames=["All"])["Messages"]
    assert (message["Body"], message["Attributes"]["ApproximateReceiveCount"]) == ("for the next", "1")


def test_a_stop_ends_long_polls_and_leaves_nothing_leased(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/jobs.db"
    with gateway(url, tmp_path / "log") as running:
        sqs = client_of(running.address, read_timeout=30)
        queue = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        ended: list[object] = []

        def wait() -> None:
            try:
                ended.append(sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20))
            except Exception as exc:
                ended.append(exc)

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.5)
        assert running.stop() == 0
        waiting.join(20)
        assert len(ended) == 1  # empty, or refused: boto3 has asked again by itself
    with pabal.connect(url) as mq:
        mq.queue("jobs").publish("x")
        assert len(mq.queue("jobs").lease()) == 1


def test_dead_letters_are_moved_back_with_a_rate_and_can_be_cancelled(sqs: Any, new_queue: Callable[..., str]) -> None:
    dead = new_queue()
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    url = new_queue(RedrivePolicy=redrive)
    sent = {sqs.send_message(QueueUrl=url, MessageBody=f"m{n}")["MessageId"] for n in range(8)}
    for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]:
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)

    def status() -> dict[str, Any]:
        found: dict[str, Any] = sqs.list_message_move_tasks(SourceArn=arn)["Results"][0]
        return found

    handle = sqs.start_message_move_task(SourceArn=arn, MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    until(lambda: status()["ApproximateNumberOfMessagesMoved"] >= 2)
    assert status()["Status"] == "RUNNING" and status()["ApproximateNumberOfMessagesToMove"] == 8
    with_one = {"SourceArn": arn, "MaxNumberOfMessagesPerSecond": 1}
    try:
        sqs.start_message_move_task(**with_one)
        raise AssertionError("two at once")
    except sqs.exceptions.UnsupportedOperation:
        pass
    assert sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"] >= 2
    until(lambda: status()["Status"] == "CANCELLED")
    sqs.start_message_move_task(SourceArn=arn)
    until(lambda: status()["Status"] == "COMPLETED")
    found: dict[str, dict[str, Any]] = {}
    while len(found) < 8:
        asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 5}
        found |= {message["MessageId"]: message for message in sqs.receive_message(**asked)["Messages"]}
    assert set(found) == sent and "Messages" not in sqs.receive_message(QueueUrl=dead)
    for wrong in (arn + "x", "arn:aws:sqs:x:y:none"):
        try:
            sqs.start_message_move_task(SourceArn=wrong)
            raise AssertionError("no such queue")
        except sqs.exceptions.ResourceNotFoundException:
            pass


def test_a_queue_that_one_gateway_made_is_there_for_the_other_at_once(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/jobs.db"
    with gateway(url, tmp_path / "log") as one, gateway(url, tmp_path / "log2") as two:
        first, second = client_of(one.address), client_of(two.address)
        for name in ("a", "b", "c"):
            second.list_queues()
            made = first.create_queue(QueueName=name)["QueueUrl"]
            second.send_message(QueueUrl=made, MessageBody=name)
            arn = f"arn:aws:sqs:eu-west-1:000000000000:{name}"
            redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
            second.create_queue(QueueName=f"{name}-source", Attributes={"RedrivePolicy": redrive})


@pytest.mark.anyio
async def test_what_was_read_before_a_change_is_not_remembered_after_it(tmp_path: Path) -> None:
    async with pabal.aio.connect(f"sqlite:{tmp_path}/jobs.db") as mq:
        await mq.queue("old").create()
        known = Directory(mq, ManualClock())
        queues = mq.queues
        read, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> list[str]:
            names = await queues()
            read.set()
            await go_on.wait()
            return names

        mq.queues = slow  # type: ignore[method-assign]
        looking = asyncio.create_task(known.names())
        await read.wait()
        await mq.queue("old").delete(force=True)
        known.forget("old")
        go_on.set()
        assert await looking == {"old"}
        assert await known.names() == set()
