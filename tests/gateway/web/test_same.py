"""The page, the HTTP interface, `pabal top` and the command line show the same figures of a busy store."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

import pabal
from tests.cli.command import Pabal
from tests.cli.screen import Screen, row
from tests.gateway.conftest import Running
from tests.gateway.http_client import Client
from tests.gateway.web.conftest import OpenPage
from tests.waiting import until

QUEUES = ("alpha", "beta", "gamma")
STATES = ("ready", "inflight", "delayed", "dead")
COUNTERS = {"published": "published", "delivered": "leased", "acked": "acked", "retried": "retries"}  # HTTP, command

Counts = dict[str, list[int]]


def work(mq: pabal.Connection, chance: random.Random, stop: threading.Event) -> None:
    """Publish, ack, fail and leave messages in all queues until it is told to stop."""
    while not stop.is_set():
        queue = mq.queue(chance.choice(QUEUES))
        queue.publish_many(range(chance.randrange(1, 6)), delay=chance.choice([0, 0, 0, 3600]))
        for delivery in queue.lease(chance.randrange(1, 5), visibility=3600):
            ending = chance.random()
            if ending < 0.6:
                delivery.ack()
            elif ending < 0.8:
                delivery.bury("why")
            elif ending < 0.9:
                delivery.nack(delay=3600)


def printed(command: Pabal) -> Counts:
    documents = map(json.loads, command.ok("status", "--json").splitlines())
    return {each["queue"]: [each[state] for state in STATES] for each in documents}


def answered(client: Client) -> Counts:
    return {each["queue"]: [each[state] for state in STATES] for each in client("list_queues")["queues"]}


def on_page(page: Page) -> Counts:
    rows: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('table.queues tbody tr')].map((row) => [...row.cells].map((cell) =>"
        " cell.querySelector('a, span.zero')?.textContent ?? cell.textContent))"
    )
    return {each[0]: [int(text.replace(",", "")) for text in each[1:5]] for each in rows}


def on_screen(screen: Screen) -> Counts:
    text = screen.text()
    if not all(f"{name} " in text for name in QUEUES):
        return {}  # it is being drawn
    return {name: [int(word.replace("·", "0")) for word in row(text, name)[1:5]] for name in QUEUES}


def counted(command: Pabal) -> dict[str, dict[str, int]]:
    queues = json.loads(command.ok("metrics", "--json"))["queues"]
    return {name: {ours: queues[name][theirs] for ours, theirs in COUNTERS.items()} for name in QUEUES}


def bounded(client: Client, command: Pabal) -> None:
    """What is counted only grows: figures over HTTP lie between those printed before and after."""
    before = counted(command)
    shown: dict[str, Any] = {each["queue"]: each for each in client("list_queues")["queues"]}
    after = counted(command)
    for name in QUEUES:
        for counter in COUNTERS:
            assert before[name][counter] <= shown[name][counter] <= after[name][counter], (name, counter)


def test_all_of_them_show_the_same_while_it_is_busy_and_when_it_rests(
    mq: pabal.Connection, url: str, shown: Running, open_page: OpenPage, tmp_path: Path
) -> None:
    for name in QUEUES:
        mq.queue(name).publish(1)
    command = Pabal(url, tmp_path)
    client = Client(shown)
    page = open_page()
    screen = Screen(tmp_path, {**command.env, "LC_ALL": "C.UTF-8"})
    try:
        screen.start(shows="gamma")
        for seed in range(3):
            stop = threading.Event()
            workers = [
                threading.Thread(target=work, args=(mq, random.Random(f"{seed}-{number}"), stop)) for number in range(2)
            ]
            for each in workers:
                each.start()
            try:
                for _ in range(5):
                    bounded(client, command)
            finally:
                stop.set()
                for each in workers:
                    each.join()
            wanted = printed(command)
            assert answered(client) == wanted
            until(lambda wanted=wanted: on_page(page) == wanted)  # type: ignore[misc]  # a default that binds
            until(lambda wanted=wanted: on_screen(screen) == wanted)  # type: ignore[misc]  # a default that binds
            assert printed(command) == wanted
    finally:
        screen.close()
