"""A manager as a process of its own, for tests that talk to it from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pabal.errors import PabalError
from pabal.mailbox.client import Mailbox

PABAL = [sys.executable, "-c", "from pabal.cli.main import main; main()"]
YIRANGMQ = [sys.executable, "-c", "from pabal.cli.mq import yirangmq; yirangmq()"]


class Running:
    """`pabal up` in a folder, until ended. Started again at the same place if killed."""

    def __init__(self, folder: Path, *arguments: str, env: dict[str, str] | None = None, gateway: bool = False) -> None:
        self.folder = folder
        self.ipc = folder / ".pabal" / "ipc"
        self._arguments = arguments
        self._env = env
        self._gateway = gateway
        self._log = open(folder / "up.log", "ab")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [*PABAL, "up", *([] if self._gateway else ["--no-gateway"]), *self._arguments],
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_until_up(self, timeout: float = 30.0) -> None:
        end = time.monotonic() + timeout
        while True:
            try:
                self.ask("health", timeout=1.0)
                return
            except PabalError:
                assert self.process.poll() is None, self.log
                assert time.monotonic() < end, f"no answer: {self.log}"
                time.sleep(0.01)

    def ask(self, command: str, payload: dict[str, Any] | None = None, timeout: float = 20.0, **options: Any) -> Any:
        mailbox = Mailbox(self.ipc, "tester", timeout=timeout)
        try:
            return mailbox.ask(command, payload, **options)
        finally:
            mailbox.close()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, timeout: float = 30.0) -> int:
        self.signal(signal.SIGTERM)
        return self.process.wait(timeout)

    @property
    def log(self) -> str:
        return (self.folder / "up.log").read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._log.close()
