"""A manager and its clients, each a process of its own: what the way through the mailbox costs."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

import pabal
from ours import Ours
from pabal.errors import PabalError

_UP = [sys.executable, "-c", "from pabal.cli.main import main; main()", "up", "--root"]


class Manager:
    """`pabal up` on a root of its own, all defaults."""

    def __init__(self, place: Path) -> None:
        self.url = _url(place)
        place.mkdir(parents=True, exist_ok=True)
        with open(place / "log", "ab") as log:
            self._process = subprocess.Popen([*_UP, str(place / "root")], cwd=place, stdout=log, stderr=log)
        end = time.monotonic() + 30
        while True:
            try:
                with pabal.connect(self.url) as mq:
                    mq.queues()
                return
            except PabalError:
                if time.monotonic() > end or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def usage(self) -> tuple[float, float]:
        """Return the CPU seconds used so far and the resident MB."""
        process = psutil.Process(self._process.pid)
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss / 1e6

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)


class Client(Ours):
    """A queue behind a manager that somebody else has started."""

    def __init__(self, place: Path) -> None:
        self._open(_url(place))


class Managed(Client):
    """A queue behind a manager of its own."""

    def __init__(self, place: Path) -> None:
        self._manager = Manager(place)
        super().__init__(place)

    def close(self) -> None:
        super().close()
        self._manager.close()


def _url(place: Path) -> str:
    return f"mailbox://{place}/root/ipc"
