"""A program of a user that both type checkers accept; `assert_type` says what they must infer."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, assert_type

import msgspec

import pabal
import pabal.aio


class Email(msgspec.Struct):
    to: str


@dataclasses.dataclass
class Order:
    number: int


class Bill(TypedDict):
    amount: int


def sync() -> None:
    with pabal.connect("sqlite:jobs.db") as mq:
        emails = mq.queue("emails", body=Email)
        assert_type(emails, pabal.Queue[Email])
        emails.publish(Email("kim"), delay=timedelta(minutes=5), priority="high")
        emails.publish(Email("lee"), at=datetime.now(UTC), headers={"a": "b"}, ttl=60)
        emails.publish_many([Email("a"), emails.draft(Email("b"), id="x")], type="email")
        for delivery in emails.lease(10, visibility=60, wait=None):
            assert_type(delivery, pabal.Delivery[Email])
            assert_type(delivery.body, Email)
            delivery.ack(then=[mq.queue("orders", body=Order).draft(Order(1))])
        for order in mq.queue("orders", body=Order).consume(wait=1, prefetch=8):
            with order as held:
                assert_type(held.body.number, int)
        bills = mq.queue("bills", body=Bill)
        bills.publish({"amount": 3})
        anything = mq.queue("anything")
        anything.publish({"any": ["json", 1, None]})
        anything.publish(b"bytes")
        for loose in anything.lease():
            assert_type(loose.body, Any)
        pabal.worker(emails, send).run(wait=0)
        pabal.worker(anything, send, body=Email, concurrency=4, visibility=30, timeout=5).run(wait=0)


def send(delivery: pabal.Delivery[Email]) -> None:
    print(delivery.body.to)


async def asynchronous() -> None:
    async with pabal.aio.connect("sqlite:jobs.db") as mq:
        emails = mq.queue("emails", body=Email)
        assert_type(emails, pabal.aio.Queue[Email])
        await emails.publish(Email("kim"))
        async for delivery in emails.consume(wait=1):
            async with delivery:
                assert_type(delivery.body, Email)
        await pabal.aio.worker(emails, send_soon, concurrency=100).run(wait=0)
        await pabal.aio.worker(mq.queue("anything"), send_soon, body=Email).run(wait=0)


async def send_soon(delivery: pabal.aio.Delivery[Email]) -> None:
    print(delivery.body.to)
