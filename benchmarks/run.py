"""Measure Pabal against the raw limits and its peers, and print one table. See docs/benchmarks.md.

Progress goes to standard error, the table to standard output. All files lie in a temporary directory under the current
one, which must not be on tmpfs, and are removed at the end.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import agents
import chat
import dashboard
import footprint
import gateway
import growth
import realm
import tasks
import users
import waiting
import workers
from contest import Pair, Ratio, contest
from kinds import PEERS, STORES
from machine import facts, file_system
from rows import Section, sections
from scale import FULL, QUICK, SMOKE, Scale
from table import Cell, Line, render
from topics import kafka_server

MEMORY_AIM, LATENCY_AIM, IDLE_AIM = 10.0, 0.7, 1.0
LATENCY = "publish to receipt in another process, p50 / p99"
LEASING = "as users call it: published 5 ms apart, lease(wait) in a loop in another process"
REDIS = "redis"
LEASING_AIMS = {"sqlite": (0.8, 4.0), "files": (1.2, None), "hybrid": (None, None)}
THROUGH = "as users call it: sqlite, published and taken by processes at once"
FIRST = f"as users call it: files, lease + ack the first {users.FIRST} of a new process"
FIRST_AIM = 0.5
WAITING = "as users call it: one message for many that wait"
ASYNCIO = f"asyncio: sqlite, {tasks.TASKS} tasks that publish one each at a time"
ASYNCIO_AIM, LATE_AIM = 8.0, 10.0
WORK = "workers as a command: functions that do nothing"
IDLE = "CPU of a sleeping consumer"
ROUND_TRIP = "mailbox: round trip of a publish"
MANAGER = "mailbox: an idle manager"
AGENTS = "ignite: moved in until its agent's command runs"
AGENTS_AIM = 50.0
GATEWAY, GATEWAY_AIM = "SQS gateway on sqlite: ", 1.0
DASHBOARD = f"dashboard on sqlite: publish + lease + ack, {dashboard.VIEWERS} viewers, to no gateway: "
DASHBOARD_AIMS = {dashboard.OPEN: 0.97, dashboard.CLOSED: None}
DASHBOARD_CPU_AIMS = {dashboard.OPEN: 30.0, dashboard.CLOSED: 3.0}
DISPATCHES = "kingdom: events dispatched, files"
SOLDIERS = "kingdom: moved in until its soldier begins"
KINGDOM = "kingdom: idle, six roles, CPU"
CHAT = "chat: sent until another client has it"
CHAT_RATE = "chat: messages through, to a bare python-socketio echo"
CHAT_ROOM = "chat: one room, until the last socket has a message"
CHAT_AIM, CHAT_RATE_AIM, CHAT_ROOM_AIM = 25.0, 0.5, 500.0
DISPATCHES_AIM, SOLDIERS_AIM, KINGDOM_AIM = 500.0, 300.0, 10.0
P50_AIM, P99_AIM, MANAGER_CPU_AIM, MANAGER_MEMORY_AIM = 2.0, 8.0, 5.0, 60.0
NOISE = {"MB": 1.0, "ms per s": 0.1}


class Run:
    """One run: how much, in which order, where, and which rows."""

    def __init__(self, scale: Scale, chance: random.Random, place: Path, only: str) -> None:
        self._scale = scale
        self._chance = chance
        self._place = place
        self._only = only
        self._growth: dict[str, Cell] = {}  # MB by kind, measured where a backlog stands anyway

    def lines(self) -> Iterator[Line]:
        """Measure row by row."""
        for section in sections(self._scale):
            rows = [row for row in section.rows if self._only in row.title]
            if rows and section.kafka:
                yield from self._on_kafka(section._replace(rows=rows))
            elif rows:
                yield from self._ratios(section._replace(rows=rows))
        yield from self._growths()
        if self._growth:
            title = f"memory at a backlog of {self._scale.large:,} above empty"
            yield from _by_store(title, "MB", self._growth, {"sqlite": MEMORY_AIM})
        if self._only in LATENCY:
            yield from _by_store(LATENCY, "ms", self._latencies(), dict.fromkeys(STORES, LATENCY_AIM))
        if self._only in LEASING:
            yield from self._leasing()
        for consumers in (1, 4):
            title = f"{THROUGH}, {self._scale.processes} to {consumers}"
            if self._only in title:
                _tell(title)
                rate = users.through("sqlite bytes", self._fresh(f"through-{consumers}"), self._scale, consumers)
                yield Line(title, rate, unit="per s")
        if self._only in FIRST:
            _tell(FIRST)
            found = users.first_ratio("files", self._fresh("first"), self._scale)
            yield Line(f"{FIRST} at {self._scale.large:,}, to {self._scale.small:,}", found, FIRST_AIM)
        yield from self._waiting()
        if self._only in ASYNCIO:
            _tell(ASYNCIO)
            ratio, late = tasks.together(self._fresh("asyncio"), self._scale)
            yield Line(f"{ASYNCIO}, to one task", ratio, ASYNCIO_AIM, own_base=True)
            yield _alone(f"{ASYNCIO}, the event loop is late, p99", late, LATE_AIM, "ms")
        if self._only in IDLE:
            yield from _by_store(IDLE, "ms per s", self._idle(), dict.fromkeys(STORES, IDLE_AIM))
        if self._only in WORK:
            for many in workers.PROCESSES:
                title = f"{WORK}, {many} process{'es' * (many > 1)}"
                _tell(title)
                ours = workers.pabal_work(self._fresh(f"work-{many}"), self._scale, many)
                huey = workers.huey_consumer(self._fresh(f"work-huey-{many}"), self._scale, many)
                yield Line(f"{title}, per s", ours, peers={"huey": huey})
                yield Line(
                    f"{title}, RQ for comparison, per s",
                    workers.rq_workers(self._fresh(f"rq-{many}"), self._scale, many),
                )
        if self._only in ROUND_TRIP:
            _tell(ROUND_TRIP)
            p50, p99 = footprint.round_trip(self._fresh("mailbox-trip"), self._scale)
            yield _alone(f"{ROUND_TRIP}, p50", p50, P50_AIM, "ms")
            yield _alone(f"{ROUND_TRIP}, p99", p99, P99_AIM, "ms")
        if self._only in MANAGER:
            _tell(MANAGER)
            used, megabytes = footprint.idle_manager(self._fresh("mailbox-idle"), self._scale)
            yield _alone(f"{MANAGER}, CPU", used, MANAGER_CPU_AIM, "ms per s")
            yield _alone(f"{MANAGER}, memory", megabytes, MANAGER_MEMORY_AIM, "MB")

        if self._only in AGENTS:
            yield from self._agents()
        yield from self._gateway()
        yield from self._dashboard()
        yield from self._kingdom()
        yield from self._chat()

    def _growths(self) -> Iterator[Line]:
        for each in growth.GROWTHS:
            for kind in STORES:
                title = f"{kind}: {each.title}, cost of one"
                if self._only in title:
                    _tell(title)
                    most, found = growth.ratio(each, kind, self._fresh(f"growth-{kind}"), self._scale)
                    full = f"{title} at {most:,}, to {most // 10:,}"
                    yield Line(full, found, growth.AIM, lower_is_better=True)

    def _on_kafka(self, section: Section) -> Iterator[Line]:
        with kafka_server(self._place) as missing:
            if missing:
                yield from (Line(row.title, missing, row.aim) for row in section.rows)
            else:
                yield from self._ratios(section)

    def _agents(self) -> Iterator[Line]:
        for backlog in (0, min(agents.BACKLOG, self._scale.large)):
            title = f"{AGENTS}, {backlog:,} waiting"
            _tell(title)
            found = agents.latency(self._fresh(f"ignite-{backlog}"), self._scale, self._chance, backlog)
            yield from _latency(title, found, None, AGENTS_AIM)

    def _gateway(self) -> Iterator[Line]:
        if not any(self._only in f"{GATEWAY}{title}" for title, *_ in gateway.rows()):
            return
        if reason := gateway.missing():
            for title, *_ in gateway.rows():
                yield Line(f"{GATEWAY}{title}", f"needs {reason}")
            return
        _tell(f"{GATEWAY}sends and receives")
        for title, found in gateway.ratios(self._fresh("gateway"), self._scale):
            for peer, ratio in found.items():
                yield Line(f"{GATEWAY}{title}, to {peer}, which does not sync", ratio, GATEWAY_AIM)

    def _dashboard(self) -> Iterator[Line]:
        if self._only not in DASHBOARD:
            return
        _tell(DASHBOARD)
        for kind, found in dashboard.costs(self._fresh("dashboard"), self._scale).items():
            yield Line(f"{DASHBOARD}{kind}", found.ratio, DASHBOARD_AIMS[kind])
            yield _alone(f"{DASHBOARD}{kind}, CPU of the gateway", found.used, DASHBOARD_CPU_AIMS[kind], "ms per s")

    def _kingdom(self) -> Iterator[Line]:
        if self._only in DISPATCHES:
            _tell(DISPATCHES)
            rate = realm.dispatched(self._fresh("kingdom-dispatch"), self._scale)
            yield Line(DISPATCHES, rate, DISPATCHES_AIM, unit="per s")
        if self._only in SOLDIERS:
            _tell(SOLDIERS)
            found = realm.latency(self._fresh("kingdom-latency"), self._scale, self._chance)
            yield from _latency(SOLDIERS, found, None, SOLDIERS_AIM)
        if self._only in KINGDOM:
            _tell(KINGDOM)
            yield _alone(KINGDOM, realm.idle(self._fresh("kingdom-idle"), self._scale), KINGDOM_AIM, "ms per s")

    def _chat(self) -> Iterator[Line]:
        if self._only in CHAT:
            _tell(CHAT)
            found = chat.latency(self._fresh("chat-latency"), self._scale, self._chance)
            yield from _latency(CHAT, found, CHAT_AIM, None)
        if self._only in CHAT_RATE:
            _tell(CHAT_RATE)
            yield Line(CHAT_RATE, chat.rate(self._fresh("chat-rate"), self._scale, self._chance), CHAT_RATE_AIM)
        if self._only in CHAT_ROOM:
            _tell(CHAT_ROOM)
            count = min(chat.SOCKETS, self._scale.large)
            worst = chat.crowded(self._fresh("chat-room"), self._scale)
            yield Line(f"{CHAT_ROOM}, worst of {count:,}", worst, CHAT_ROOM_AIM, lower_is_better=True, unit="ms")

    def _ratios(self, section: Section) -> Iterator[Line]:
        pairs = [pair for row in section.rows for pair in (row.pair, *row.peers.values())]
        found: dict[Pair, Ratio | str] = {}
        for group in _by_kind(pairs) if section.apart else [pairs]:
            _tell(f"{group[0].contender.work.value}, {', '.join(dict.fromkeys(p.contender.kind for p in group))}")
            after = self._memory if section.apart else _nothing
            found |= contest(group, self._scale, self._chance, self._place, after)
        for row in section.rows:
            peers = {name: found[pair] for name, pair in row.peers.items()}
            own_base = row.pair.contender.kind == row.pair.base.kind
            yield Line(row.title, found[row.pair], row.aim, peers, synced=row.synced, own_base=own_base)

    def _memory(self, places: Mapping[tuple[str, int], Path]) -> None:
        for (kind, backlog), place in places.items():
            if backlog == self._scale.large:
                self._growth[kind] = footprint.memory_growth(kind, place, self._fresh(f"{kind}-empty"))

    def _latencies(self) -> dict[str, Cell]:
        found: dict[str, Cell] = {}
        for kind in self._shuffled():
            _tell(f"{LATENCY}, {kind}")
            found[kind] = footprint.latency(kind, self._fresh(f"{kind}-latency"), self._scale, self._chance)
        return found

    def _leasing(self) -> Iterator[Line]:
        found: dict[str, Cell] = {}
        for kind in [*self._shuffled(), REDIS]:
            _tell(f"{LEASING}, {kind}")
            subject = f"{kind} leasing" if kind in STORES else kind
            found[kind] = footprint.latency(
                subject, self._fresh(f"{kind}-leasing"), self._scale, self._chance, gap=(0.005, 0.005)
            )
        for store, (p50_aim, p99_aim) in LEASING_AIMS.items():
            for place, aim in enumerate((p50_aim, p99_aim)):
                peers = {name: _part(found[name], place) for name in PEERS}
                title = f"{LEASING}, {store}, p{(50, 99)[place]}"
                ours, synced = _part(found[store], place), store != "sqlite"
                yield Line(title, ours, aim, peers, lower_is_better=True, synced=synced, unit="ms")
        for place, name in enumerate(("p50", "p99")):
            title = f"{LEASING}, Redis Streams, {name}"
            yield Line(title, _part(found[REDIS], place), lower_is_better=True, unit="ms")

    def _waiting(self) -> Iterator[Line]:
        many = self._scale.small
        for kind in ("sqlite", "files"):
            for name, processes, threads in (("threads", 1, many), ("processes", many // 10, 1)):
                title = f"{WAITING}, {kind}, {processes * threads:,} {name}"
                if self._only in title:
                    _tell(title)
                    place = self._fresh(f"waiting-{kind}-{name}")
                    found, used = waiting.woken(f"{kind} leasing", place, self._scale, processes, threads)
                    yield Line(f"{title}, until one has it", found, lower_is_better=True, unit="ms")
                    yield Line(f"{title}, CPU of all of them", used, lower_is_better=True, unit="ms")

    def _idle(self) -> dict[str, Cell]:
        found: dict[str, Cell] = {}
        for kind in self._shuffled():
            _tell(f"{IDLE}, {kind}")
            found[kind] = footprint.idle_cpu(kind, self._fresh(f"{kind}-idle"), self._scale)
        return found

    def _shuffled(self) -> list[str]:
        kinds = [*STORES, *PEERS]
        self._chance.shuffle(kinds)
        return kinds

    def _fresh(self, name: str) -> Path:
        return self._place / name.replace(" ", "-")


def _by_kind(pairs: Sequence[Pair]) -> list[list[Pair]]:
    kinds = dict.fromkeys(pair.contender.kind for pair in pairs)
    return [[pair for pair in pairs if pair.contender.kind == kind] for kind in kinds]


def _by_store(title: str, unit: str, found: Mapping[str, Cell], aims: Mapping[str, float]) -> Iterator[Line]:
    peers = {name: found[name] for name in PEERS if name in found}
    for store in STORES:
        if store in found:
            yield Line(
                f"{store}: {title}",
                found[store],
                aims.get(store),
                peers,
                lower_is_better=True,
                synced=title == LATENCY and store != "sqlite",  # files are synced before they may be seen
                unit=unit,
                noise=NOISE.get(unit, 0.0),
            )


def _part(found: Cell, place: int) -> Cell:
    return found[place] if isinstance(found, footprint.Latency) else found


def _alone(title: str, found: float, aim: float, unit: str) -> Line:
    return Line(title, found, aim, lower_is_better=True, unit=unit)


def _latency(
    title: str, found: tuple[float, float] | str, p50_aim: float | None, p99_aim: float | None
) -> Iterator[Line]:
    """Tell half and nearly all of what was measured, or the reason why nothing could be."""
    p50, p99 = (found, found) if isinstance(found, str) else found
    yield Line(f"{title}, p50", p50, p50_aim, lower_is_better=True, unit="ms")
    yield Line(f"{title}, p99", p99, p99_aim, lower_is_better=True, unit="ms")


def _nothing(_places: object) -> None:
    pass


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Pabal against the raw limits and its peers.")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const=QUICK, dest="scale", help="some minutes")
    size.add_argument("--smoke", action="store_const", const=SMOKE, dest="scale", help="every row once; means nothing")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose title holds this text")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="order of slices")
    parser.set_defaults(scale=FULL)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    options = _arguments(argv)
    here = Path.cwd()
    if options.scale is not SMOKE and file_system(here)[0] == "tmpfs":
        sys.exit("benchmarks: the current directory is on tmpfs, where syncing costs nothing; run it elsewhere")
    place = Path(tempfile.mkdtemp(prefix=".bench-", dir=here))
    start = time.monotonic()
    try:
        print("\n".join(f"- {fact}" for fact in facts(here)), flush=True)
        lines = list(Run(options.scale, random.Random(options.seed), place, options.only).lines())
    finally:
        shutil.rmtree(place)
    print(f"- seed {options.seed}, {options.scale.rounds} rounds of {options.scale.slice:g} s slices,", end=" ")
    print(f"{time.monotonic() - start:.0f} s in all\n")
    print(render(lines))


if __name__ == "__main__":
    main()
