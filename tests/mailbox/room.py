"""A mailbox served by a thread, or step by step, over a store that the tests can reach behind its back."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pabal.clock import Clock, SystemClock
from pabal.connect import Connection
from pabal.mailbox.client import Mailbox
from pabal.mailbox.server import MailboxServer
from pabal.mailbox.settings import MailboxSettings
from pabal.mailbox.stats import Answered
from pabal.store import Store


class Room:
    """A manager's mailbox and its store. `serve` starts the thread; without it, each `step` is the test's."""

    def __init__(self, root: Path, store: Store, *, clock: Clock | None = None, **settings: Any) -> None:
        self.root = root
        self.store = store
        self.clock = clock or SystemClock()
        self.answered: list[Answered] = []
        self.extras: dict[str, Callable[[], dict[str, Any]]] = {}
        self.connection = Connection(store, clock=self.clock, consumer="manager")
        self.settings = MailboxSettings(**settings)
        self.server = self._open()
        self._stop = False
        self._thread: threading.Thread | None = None
        self._numbers = 0

    def _open(self) -> MailboxServer:
        return MailboxServer(
            self.root,
            self.connection,
            clock=self.clock,
            settings=self.settings,
            observe=self.answered.append,
            extras=self.extras,
        )

    def serve(self) -> Room:
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop:
            due = self.server.next_due()
            self.server.watch.wait(1.0 if due is None else min(1.0, due))
            self.server.step()

    def rest(self) -> None:
        """Stop the thread; the server stays."""
        if self._thread is not None:
            self._stop = True
            self.server.watch.wake()
            self._thread.join()
            self._thread = None

    def client(self, name: str = "client", **more: Any) -> Mailbox:
        return Mailbox(self.root, name, clock=self.clock, **more)

    def restart(self) -> None:
        """Let another server take over, as after a stop."""
        self.rest()
        self.server.close()
        self.server = self._open()

    def close(self) -> None:
        self.rest()
        self.server.close()
        self.store.close()

    # By hand, as a shell script would

    def request(self, command: str, payload: Any = None, *, client: str = "client", **more: Any) -> dict[str, Any]:
        self._numbers += 1
        document = {
            "requestId": f"r{self._numbers:04d}",
            "clientId": client,
            "command": command,
            "timestampMs": round(self.clock.now() * 1000),
            "payload": {} if payload is None else payload,
        }
        return document | more

    def drop(self, document: Any, name: str = "") -> str:
        """Move a request file in; bytes are left as they are. Return its name."""
        name = name or f"{document['requestId']}.json"
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        draft = self.root / "requests" / f"{name}.tmp"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(fd, data)
        os.utime(fd, (self.clock.now(), self.clock.now()))
        os.close(fd)
        draft.rename(self.root / "requests" / name)
        return name

    def answer(self, name: str, client: str = "client") -> Any:
        """Return what was answered, or None."""
        path = self.root / "responses" / client / name
        return json.loads(path.read_bytes()) if path.exists() else None

    def ask(self, command: str, payload: Any = None, **more: Any) -> Any:
        """Ask and step once; return the answer."""
        document = self.request(command, payload, **more)
        name = self.drop(document)
        self.server.step()
        return self.answer(name, document["clientId"])

    def good(self, command: str, payload: Any = None, **more: Any) -> Any:
        """Ask and return the data of a good answer."""
        answer = self.ask(command, payload, **more)
        assert answer is not None and answer["ok"], answer
        return answer["data"]

    def code(self, command: str, payload: Any = None, **more: Any) -> str:
        """Ask and return the code of a refusal."""
        answer = self.ask(command, payload, **more)
        assert answer is not None and not answer["ok"], answer
        code: str = answer["error"]["code"]
        return code

    def files(self, folder: str) -> list[str]:
        return sorted(name for name in os.listdir(self.root / folder) if not name.startswith("."))

    def reason(self, name: str) -> str:
        """Return why a request is dead."""
        found: str = json.loads((self.root / "dead" / f"{name}.reason").read_bytes())["reason"]
        return found
