"""`pabal move`: what it prints and how it ends."""

import json

from pabal.cli.exits import Exit
from pabal.connect import connect
from tests.cli.command import Pabal


def test_move_carries_every_queue_and_says_how_many(pabal: Pabal) -> None:
    target = f"file:{pabal.place}/roomy"
    pabal.ok("publish", "jobs", '"a"', "--id", "one")
    pabal.ok("publish", "mail", '"b"', "--delay", "1h")
    printed = pabal.ok("move", "--from", pabal.url, "--to", target)
    assert printed.splitlines() == [
        "jobs: 1 ready, 0 delayed, 0 dead, 0 done",
        "mail: 0 ready, 1 delayed, 0 dead, 0 done",
    ]
    with connect(target, create=False) as mq:
        assert mq.queues() == ["jobs", "mail"]
        assert mq.queue("jobs").lease()[0].message.id == "one"


def test_move_carries_only_the_queues_it_is_told(pabal: Pabal) -> None:
    target = f"file:{pabal.place}/roomy"
    pabal.ok("publish", "jobs", '"a"')
    pabal.ok("publish", "mail", '"b"')
    found = json.loads(pabal.ok("move", "--from", pabal.url, "--to", target, "mail", "--json"))
    assert found == {"queue": "mail", "ready": 1, "delayed": 0, "dead": 0, "done": 0, "left": 0}
    assert pabal.counts("jobs") == {"ready": 1}
    assert pabal("move", "--from", pabal.url, "--to", target, "male").code == Exit.UNKNOWN


def test_move_ends_with_one_while_a_consumer_holds_something(pabal: Pabal) -> None:
    target = f"file:{pabal.place}/roomy"
    pabal.ok("publish", "jobs", '"a"')
    with pabal.connect() as mq:
        [held] = mq.queue("jobs").lease()
        ran = pabal("move", "--from", pabal.url, "--to", target)
        assert ran.code == Exit.NOTHING and "1 left at the source" in ran.out
        held.release()
    assert pabal.ok("move", "--from", pabal.url, "--to", target).startswith("jobs: 1 ready")


def test_move_refuses_what_makes_no_sense(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", '"a"')
    assert pabal("move", "--from", pabal.url, "--to", pabal.url).code == Exit.INVALID
    assert pabal("move", "--from", "sqlite:nowhere.db", "--to", pabal.url).code == Exit.UNKNOWN
    assert pabal("move", "--to", pabal.url).code == Exit.INVALID
    assert pabal("move", "--from", pabal.url, "--to", "sqlite:other.db", "--wait", "nan").code == Exit.INVALID
