"""Damage to the database of topics: `python -m tests.damage.topics FIRST COUNT`, as in `tests.damage.trial`."""

import json
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click

import pabal
from pabal import jsontext
from pabal.errors import PabalError
from tests.crash.harness import scratch
from tests.damage.harm import CONTENT, harm_content
from tests.damage.template import body_of, key_of
from tests.damage.trial import command, copied, in_child

_RECORDS = 40
_DATABASE = "topics.db"
_TOPICS = ("chat", "audit")  # two: a page may come to lie among the records of the other


def make(place: Path) -> None:
    """Make topics with two partitions each, and a group that has read a part of one."""
    place.mkdir()
    with closing(pabal.connect_topics(f"sqlite:{place / _DATABASE}")) as connection:
        for name in _TOPICS:
            topic = connection.topic(name)
            topic.create(partitions=2, schema={"type": "object"})
            for number in range(_RECORDS // len(_TOPICS)):
                headers = {"number": str(number)}
                topic.append(body_of(f"{name}-{number}"), key=f"key-{number % 7}", headers=headers)
        with closing(topic.topics.join("chat", "archive")) as member:
            for record in member.read(10, 1.0):
                member.commit({record.partition: record.offset + 1})


def use(url: str) -> dict[str, Any]:
    """Read everything, join a group, and append anew."""
    keys: list[str] = []
    wrong: list[str] = []
    faults, refused, usable = 0, "", False
    try:
        with closing(pabal.connect_topics(url)) as connection:
            for name in _TOPICS:
                topic = connection.topic(name)
                topic.topics.settings(name)
                for partition, bounds in enumerate(topic.bounds()):
                    for record in topic.read(partition, bounds.first, 1000):
                        if record.fault:
                            faults += 1
                        elif (key_of(body := jsontext.read(record.value)) or "").startswith(f"{name}-"):
                            keys.append(body["key"])
                        else:
                            wrong.append(str(record.value)[:300])
            with closing(topic.topics.join("chat", "late")) as member:
                member.read(1000, 0.5)
            usable = connection.topic("chat").append(body_of("chat-new"), partition=0).offset >= 0
    except PabalError as exc:
        refused = f"{exc.code}: {exc}"
    return {"keys": keys, "wrong": wrong, "faults": faults, "refused": refused, "usable": usable}


def examine(place: Path) -> dict[str, Any]:
    """Show a damaged topic by every command, ask the doctor, use it, let it be repaired, use it again."""
    url, mended = f"sqlite:{place / _DATABASE}", place.with_name("mended")
    shutil.copytree(place, mended)
    other = f"sqlite:{mended / _DATABASE}"
    for arguments in (("list",), ("groups", "chat"), ("tail", "chat", "-n", "5")):
        command("", "topic", "--topics", url, *arguments)
    doctor, before = command("", "topic", "--topics", url, "doctor", "--json"), use(url)
    repair, after = command("", "topic", "--topics", other, "doctor", "--repair", "--json"), use(other)
    return {"doctor": doctor, "repair": repair, "before": before, "after": after}


def judge(seen: dict[str, Any]) -> Iterator[str]:
    """Yield what must not be."""
    if "hang" in seen or "traceback" in seen:
        yield f"{seen}"
        return
    for when in ("before", "after"):
        use = seen[when]
        if use["wrong"]:
            yield f"{when} repair: wrong bodies {use['wrong'][:3]}"
        if len(set(use["keys"])) != len(use["keys"]):
            yield f"{when} repair: read twice"
    before = seen["before"]
    if (before["refused"] or len(before["keys"]) + before["faults"] < _RECORDS) and seen["doctor"][0] == 0:
        yield f"doctor is content; {before}"
    if worse := set(before["keys"]) - set(seen["after"]["keys"]):
        yield f"worse after repair: {sorted(worse)}; {seen['repair'][1][-600:]}"


def main(first: int, count: int) -> None:
    with scratch() as folder:
        template = Path(folder) / "template"
        make(template)
        intact = in_child(lambda: examine(copied(template, Path(folder) / "intact")))
        assert len(intact["after"]["keys"]) == _RECORDS and intact["after"]["usable"], intact
        for seed in range(first, first + count):
            chance = random.Random(seed)
            with scratch() as own:
                place = copied(template, Path(own))
                how = chance.choice(list(CONTENT))
                harm_content(place / _DATABASE, how, chance)
                for fault in judge(in_child(partial(examine, place))):
                    click.echo(json.dumps(f"seed {seed}, {how}: {fault}"))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
