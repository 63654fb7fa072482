"""A chat as its users have it: `pabal chat` in processes of its own, and people who call its REST side."""

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.waiting import until

PABAL = [sys.executable, "-c", "from pabal.cli.main import main; main()"]
PASSWORD = "a long password"
STARTED_WITHIN = 60.0


class Process:
    """A command of ours, until it is stopped or killed."""

    def __init__(self, *arguments: str, log: Path) -> None:
        with log.open("ab") as file:
            self._popen = subprocess.Popen(
                [*PABAL, *arguments], stdout=subprocess.PIPE, stderr=file, start_new_session=True
            )
        self._log = log

    @property
    def pid(self) -> int:
        return self._popen.pid

    def line(self, start: str) -> str:
        """Return the first line it prints that begins so, without that beginning."""
        assert self._popen.stdout is not None
        end = time.monotonic() + STARTED_WITHIN
        while time.monotonic() < end:
            if select.select([self._popen.stdout], [], [], 1.0)[0]:
                line = self._popen.stdout.readline().decode()
                if line.startswith(start):
                    return line.removeprefix(start).strip()
                if not line:
                    break
        self.kill()
        raise AssertionError(f"it printed nothing that begins with {start!r}: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        self._popen.kill()
        self._end()

    def stop(self) -> None:
        self._popen.send_signal(signal.SIGTERM)
        self._end()

    def _end(self) -> None:
        self._popen.wait(60)
        assert self._popen.stdout is not None
        self._popen.stdout.close()


class Up:
    """A whole chat on this machine."""

    def __init__(self, root: Path, *limits: str) -> None:
        root.mkdir()
        options = [part for limit in limits for part in ("--limit", limit)]
        self._process = Process(
            "chat", "up", "--root", str(root / "chat"), "--port", "0", *options, log=root / "up.log"
        )
        self.address = self._process.line("chat ")

    def child(self, name: str) -> int:
        """Return the process id of the gateway or the worker."""
        for pid in Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"chat" in words and words[words.index(b"chat") + 1] == name.encode():
                return int(pid)
        raise AssertionError(f"no {name} is running")

    def kill(self, name: str) -> None:
        """Kill the gateway or the worker; it is started again."""
        os.kill(self.child(name), signal.SIGKILL)

    def stop(self) -> None:
        self._process.stop()


@contextmanager
def running(root: Path, *limits: str) -> Iterator[Up]:
    up = Up(root, *limits)
    try:
        yield up
    finally:
        up.stop()


class Person:
    """A registered user who is logged in."""

    def __init__(self, address: str, name: str, *, exactly: bool = False) -> None:
        self.address = address
        self.email = f"{name if exactly else f'{name}-{uuid.uuid4().hex[:6]}'}@example.org"
        self._http = httpx2.Client(base_url=address, timeout=30)
        account = {"email": self.email, "password": PASSWORD}
        assert self._http.post("/auth/register", json=account).status_code == 201
        self.session: dict[str, Any] = self._http.post("/auth/login", json=account).json()
        self.token: str = self.session["accessToken"]
        self.id: str = self.session["user"]["id"]
        self._http.headers["Authorization"] = f"Bearer {self.token}"

    @property
    def name(self) -> str:
        name: str = self.session["user"]["name"]
        return name

    def get(self, path: str) -> Any:
        return self._good(self._http.get(path))

    def post(self, path: str, body: object = None) -> Any:
        return self._good(self._http.post(path, json={} if body is None else body))

    def make_room(self, name: str, *others: "Person") -> str:
        """Make a room with these members; return its id when it is known that all are in."""
        room_id: str = self.post("/rooms", {"name": name})["id"]
        for other in others:
            invitation = self.post(f"/rooms/{room_id}/invitations")["invitation"]
            other.post(f"/rooms/{room_id}/join", {"invitation": invitation})
        until(lambda: len(self.messages(room_id)) == len(others))  # one who joins is announced
        return room_id

    def messages(self, room_id: str) -> list[dict[str, Any]]:
        """Return all messages of a room."""
        found: list[dict[str, Any]] = []
        while True:
            after = found[-1]["sequence"] if found else 0
            page = self.get(f"/rooms/{room_id}/messages?after={after}&limit=100")
            found += page["messages"]
            if not page["hasMore"]:
                return found

    def texts(self, room_id: str) -> list[str]:
        return [message["content"] for message in self.messages(room_id) if message["type"] != "SYSTEM"]

    def close(self) -> None:
        self._http.close()

    def _good(self, response: httpx2.Response) -> Any:
        assert response.is_success, response.text
        return response.json()
