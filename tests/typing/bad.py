"""Mistakes of a user: both type checkers report each line that ends with `# wrong`, and no other."""

from __future__ import annotations

import msgspec

import pabal
import pabal.aio


class Email(msgspec.Struct):
    to: str


def handle(delivery: pabal.Delivery[int]) -> None:
    print(delivery.body)


async def handle_soon(delivery: pabal.aio.Delivery[Email]) -> None:
    print(delivery.body.to)


def main() -> None:
    with pabal.connect("sqlite:jobs.db") as mq:
        emails = mq.queue("emails", body=Email)
        emails.publish("kim")  # wrong
        emails.publish(Email("kim"), dealy=3)  # wrong
        emails.publish(Email("kim"), priority="hihg")  # wrong
        emails.publish(Email("kim"), "id")  # wrong
        emails.lease(1, 30)  # wrong
        emails.lease(seconds=30)  # wrong
        for delivery in emails.lease():
            print(delivery.body.from_)  # wrong
        pabal.worker(emails, handle)  # wrong
        pabal.worker(emails, handle_soon)  # wrong
        pabal.RetryPolicy(backoff="expo")  # wrong
