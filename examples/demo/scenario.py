"""The course of the demo: start the processes, kill one, count the messages, check at the end that none is lost."""

from __future__ import annotations

import queue as inbox
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from processes import QUEUE, SLOW
from view import Scene, Screen

from pabal.cli.text import span
from pabal.connect import Connection
from pabal.jsontext import decode
from pabal.policy.policy import policy_from
from pabal.store import State

_PROCESSES = Path(__file__).with_name("processes.py")
_LEASE = 3.0
_BACKOFF = 1.5
_POLICY = {"visibilityTimeoutSec": _LEASE, "retry": {"limit": 3, "backoff": "fixed", "initialDelaySec": _BACKOFF}}
_TICK = 0.1
_DRAIN = 20.0
_HELD = 0.8  # seconds that the worker holds the slow message before it is killed
_ORDINARY = 3  # successes that are shown; the others are only counted


class Scenario:
    """One run of the demo on one store."""

    def __init__(self, mq: Connection, url: str, screen: Screen) -> None:
        self._queue = mq.queue(QUEUE)
        self._url = url
        self._screen = screen
        self._scene = Scene(url)
        self._inbox: inbox.SimpleQueue[dict[str, Any]] = inbox.SimpleQueue()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._published: list[str] = []
        self._recent: dict[str, deque[float]] = {"published": deque(), "done": deque()}
        self._started = time.monotonic()
        self._kill_at = float("inf")
        self._killed = False
        self._ordinary = 0

    def run(self, seconds: float) -> None:
        """Run for this long, then let the worker finish the rest."""
        self._queue.configure(policy_from(_POLICY))
        self._start("worker")
        self._start("publisher")
        try:
            self._until(seconds, slow_at=min(4.0, seconds / 4))
            self._stop("publisher")
            self._show("", "the publisher stops; the worker finishes what is left")
            self._until(self._scene.elapsed + _DRAIN, slow_at=float("inf"), drained=True)
        except KeyboardInterrupt:
            self._show("", "stopped by Ctrl-C")
        finally:
            self._end()

    def summary(self) -> list[str]:
        """Return the state of every published message, as the store has it, and commands to try next."""
        states = Counter(str(entry.state) if (entry := self._queue.find(id)) else "lost" for id in self._published)
        listed = ", ".join(f"{count} {state}" for state, count in states.most_common())
        verdict = "LOST SOME" if states["lost"] else "0 lost"
        return [
            "",
            f"{len(self._published)} published: {listed or 'none'}; {verdict}.",
            "",
            "Try next:",
            f"  export PABAL_URL={self._url}",
            f"  pabal list-dlq {QUEUE:<30}why they died",
            f"  pabal reprocess {QUEUE + ' --all':<29}give them another chance",
            f"  pabal consume {QUEUE + ' --ack':<31}take one yourself",
        ]

    def _until(self, end: float, *, slow_at: float, drained: bool = False) -> None:
        while self._clock() < end:
            self._take_events()
            if self._clock() >= slow_at:
                slow_at = float("inf")
                self._publish_slow()
            if self._clock() >= self._kill_at:
                self._kill_worker()
            self._refresh()
            if drained and not sum(self._scene.counts.get(s, 0) for s in (State.READY, State.DELAYED, State.INFLIGHT)):
                return
            time.sleep(_TICK)

    def _publish_slow(self) -> None:
        id = self._queue.publish("takes its time", id=f"{SLOW}-001", type=SLOW, priority=9).id
        self._published.append(id)

    def _kill_worker(self) -> None:
        self._kill_at = float("inf")
        worker = self._children["worker"]
        worker.kill()
        worker.wait()
        self._show("bad", f"kill -9 {worker.pid}: the worker is gone, and {SLOW}-001 was in its hands")
        self._start("worker")

    def _take_events(self) -> None:
        while not self._inbox.empty():
            event = self._inbox.get()
            handler = getattr(self, f"_on_{event['event']}")
            handler(event)

    def _on_published(self, event: dict[str, Any]) -> None:
        self._published.append(event["id"])
        self._recent["published"].append(self._clock())

    def _on_took(self, event: dict[str, Any]) -> None:
        if not event["id"].startswith(SLOW):
            return
        if event["attempt"] == 1:
            self._kill_at = self._clock() + _HELD
            self._show("", f"{event['id']} taken: the worker is busy with it")
        else:
            self._show("good", f"{event['id']} came back when its lease ran out: attempt {event['attempt']}")

    def _on_done(self, event: dict[str, Any]) -> None:
        self._recent["done"].append(self._clock())
        if event["attempt"] > 1:
            self._show("good", f"{event['id']} done at attempt {event['attempt']}")
        elif self._ordinary < _ORDINARY:
            self._ordinary += 1
            self._show("", f"{event['id']} done")

    def _on_failed(self, event: dict[str, Any]) -> None:
        text = f"{event['id']} failed at attempt {event['attempt']}, {event['reason']}"
        if event["dead"]:
            self._show("bad", f"{text}: set aside as dead")
        else:
            self._show("odd", f"{text}: again in {span(_BACKOFF)}")

    def _on_lost(self, event: dict[str, Any]) -> None:
        self._show("odd", f"{event['id']} was taken over while attempt {event['attempt']} was still at it")

    def _refresh(self, *, last: bool = False) -> None:
        now = self._scene.elapsed = self._clock()
        for moments in self._recent.values():
            while moments and moments[0] < now - 2.0:
                moments.popleft()
        window = max(0.5, min(2.0, now))
        self._scene.rates = (len(self._recent["published"]) / window, len(self._recent["done"]) / window)
        self._scene.counts = self._queue.counts()
        self._scene.worker = f"worker {self._children['worker'].pid}"
        self._screen.update(self._scene, last=last)

    def _show(self, tone: str, text: str) -> None:
        self._scene.elapsed = self._clock()
        self._screen.event(self._scene, tone, text)

    def _clock(self) -> float:
        return time.monotonic() - self._started

    def _start(self, part: str) -> None:
        argv = [sys.executable, str(_PROCESSES), part, self._url]
        self._children[part] = child = subprocess.Popen(argv, stdout=subprocess.PIPE)
        threading.Thread(target=self._listen, args=(child,), daemon=True).start()

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                if line.endswith(b"\n"):  # a killed process may leave half a line
                    self._inbox.put(decode(line))

    def _stop(self, part: str) -> None:
        child = self._children[part]
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _end(self) -> None:
        for part, child in self._children.items():
            if child.poll() is None:
                with suppress(ProcessLookupError):
                    self._stop(part)
        time.sleep(_TICK)
        self._take_events()
        self._refresh(last=True)
