"""A client of a mailbox that works as fast as it can until it is killed, whatever happens to the manager.

    python -m tests.manager.busy IPC HISTORY ROLE SEED

What may have been done and was not answered is asked again in the same words, as every client should.
"""

import random
import sys
import time
from itertools import count
from pathlib import Path

from pabal import jsontext
from pabal.clock import SystemClock
from pabal.errors import DeadlinePassed, Refused, StoreError
from pabal.ids import IdMaker
from pabal.mailbox.client import Mailbox
from pabal.mailbox.store import MailboxStore
from pabal.message import replace
from pabal.testing.history import History
from tests.crash.recorder import AheadClock, Recorder, draft

LEASE_SECONDS = 1.0
QUEUES = ("jobs", "next")
TIMEOUT = 5.0
UNKNOWN = (StoreError, DeadlinePassed)  # what a client is told that cannot know whether it was done


def publish(recorder: Recorder, name: str, chance: random.Random) -> None:
    """Publish with ids of our own and with made ones; what was not answered is asked again, then as given."""
    make = IdMaker(SystemClock())
    for n in count():
        size, own = chance.choice((10, 1000, 9000)), chance.random() < 0.5
        key = chance.choice(("", f"k {name} {n}"))
        ids = [f"{name}-{n}-{m}" if own else make() for m in range(chance.choice((1, 1, 5)))]
        batch = [replace(draft(id, size=size, key=key), given_id=own) for id in ids]
        time.sleep(0.02)  # a longer run should not be judged by the thousands it has published
        while True:
            try:
                recorder.publish(*batch)
                break
            except UNKNOWN:
                batch = [replace(each, given_id=True) for each in batch]


def consume(recorder: Recorder, name: str, chance: random.Random) -> None:
    """Lease, and settle in every way there is; an answer that never comes is as if we had died."""
    while True:
        try:
            queue = chance.choice(QUEUES)
            for lease in recorder.lease(3, LEASE_SECONDS, queue=queue):
                way = chance.random()
                if way < 0.6:
                    recorder.ack(lease, durable=way < 0.1)
                elif way < 0.8 and queue == "jobs":
                    then = draft(f"{lease.receipt.id}-{lease.attempt}-a", queue="next")
                    recorder.ack(lease, replace(then, given_id=True))
                elif way < 0.9:
                    recorder.nack(lease)
                elif way < 0.95:
                    recorder.extend(lease, LEASE_SECONDS)
                # else it is dropped, as by a consumer that died
        except UNKNOWN:
            pass


def script(mailbox: Mailbox, history: Path, name: str) -> None:
    """Publish without an id of one's own, repeating a request under its requestId until it is answered."""
    for n in count():
        payload = {"queue": "scripts", "message": {"n": f"{name}-{n}"}}
        while True:
            try:
                data = mailbox.ask("publish", payload, request_id=f"{name}-{n}")
                break
            except StoreError:
                pass
            except Refused as exc:  # of the try before: its manager was killed, the next one came too late to it
                if exc.code != "TIMEOUT":
                    raise
        with open(history, "ab", buffering=0) as file:
            file.write(jsontext.encode({"n": f"{name}-{n}", "id": data["messageId"]}) + b"\n")


def main(ipc: str, history: str, role: str, seed: str) -> None:
    name = Path(history).stem
    mailbox = Mailbox(Path(ipc), name, timeout=TIMEOUT)
    if role == "script":
        script(mailbox, Path(history), name)
        return
    clock = AheadClock()
    recorder = Recorder(MailboxStore(mailbox), History(Path(history), clock=clock, seed=int(seed)), clock)
    {"publish": publish, "consume": consume}[role](recorder, name, random.Random(seed))


if __name__ == "__main__":
    main(*sys.argv[1:])
