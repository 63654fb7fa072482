"""A process with a wall clock of its own: it opens a store and evaluates what the test sends it.

Run as a program, it is the child: `python clocked.py URL` reads an expression from each line and answers in JSON.
"""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any


class Clocked:
    """A child process on a store. `step` moves its wall clock while it runs; no other clock and no other process."""

    def __init__(self, library: Path, folder: Path, url: str, *, ahead: float = 0.0, wrap: Sequence[str] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._offset = (folder / f"clock-{len(list(folder.iterdir()))}").open("w+b", buffering=0)
        self.ahead = 0.0
        self.step(ahead)
        self._process = subprocess.Popen(
            [*wrap, sys.executable, __file__, url],
            env={**os.environ, "LD_PRELOAD": str(library), "PABAL_TEST_CLOCK": self._offset.name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self, seconds: float) -> None:
        """Set the wall clock of the process forward or back."""
        self.ahead += seconds
        os.pwrite(self._offset.fileno(), struct.pack("q", round(self.ahead * 1_000_000)), 0)

    def set(self, at: datetime) -> None:
        """Set the wall clock to a date."""
        self.step(at.timestamp() - time.time() - self.ahead)

    def __call__(self, expression: str) -> Any:
        """Evaluate an expression over `q`, the queue `jobs`; raise what it raises as an AssertionError."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(expression.replace("\n", " ") + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "the process ended"}')
        assert "error" not in answer, f"{expression}: {answer['error']}"
        return answer["value"]

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
        self._offset.close()


def _serve(url: str) -> None:
    import pabal
    from pabal.policy.policy import DeadLetterPolicy, Policy
    from pabal.store import State
    from pabal.topic_store import NewRecord, Shape
    from pabal.topic_stores.sqlite import SqliteTopics

    mq = pabal.connect(url)
    names: dict[str, Any] = {
        "mq": mq,
        "q": mq.queue("jobs"),
        "State": State,
        "Policy": Policy,
        "DeadLetterPolicy": DeadLetterPolicy,
    }
    names |= {"time": time, "held": {}, "Shape": Shape, "NewRecord": NewRecord}
    names["topics"] = lambda url: SqliteTopics(Path(url.partition(":")[2]))
    for line in sys.stdin:
        try:
            answer = {"value": eval(line, names)}
        except Exception as exc:
            answer = {"error": f"{type(exc).__name__}: {exc}"}
        sys.stdout.write(json.dumps(answer, default=str) + "\n")
        sys.stdout.flush()
    mq.close()


if __name__ == "__main__":
    _serve(sys.argv[1])
