"""Gateways on free ports in threads of this process, a worker beside them, and people with real Socket.IO clients."""

import asyncio
import functools
import json
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import socketio
import uvicorn
from websockets.asyncio.client import ClientConnection, connect

from pabal.apps.chat.events import make_topics
from pabal.apps.chat.gateway.app import Gateway, Settings, starts_of
from pabal.apps.chat.gateway.auth import Tokens
from pabal.apps.chat.gateway.limits import Limits, with_limits
from pabal.apps.chat.gateway.serve import Address, config_of
from pabal.apps.chat.ledger import Ledger, open_ledger
from pabal.apps.chat.worker import Session, WorkerTask
from pabal.clock import Clock, SystemClock
from pabal.connect import TopicConnection, connect_topics
from pabal.errors import Outage
from pabal.ids import new_token
from pabal.runtime.origins import Origins
from pabal.runtime.service import Service
from pabal.runtime.wake import FdWatch

SECRET = b"a secret of the tests, long enough"
WITHIN = 20.0  # seconds in which what must happen happens
EVENTS = (
    "newMessage",
    "messagePersisted",
    "messageRejected",
    "presence",
    "typing",
    "expired",
    "membership",
    "read",
    "roomRenamed",
)


def played(play: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine."""

    @functools.wraps(play)
    def test(**fixtures: Any) -> None:
        asyncio.run(play(**fixtures))

    return test


async def until(test: Callable[..., object], what: str = "it") -> None:
    """Wait for something that must happen."""
    end = time.monotonic() + WITHIN
    while not test():
        assert time.monotonic() < end, f"{what} did not happen"
        await asyncio.sleep(0.01)


class Switched:
    """A ledger whose database can be taken away: every call then says Outage, as the contract has it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.down = False
        self.down_for: set[str] = set()  # only these calls
        self.after: dict[str, Callable[[], object]] = {}  # what happens before a call returns
        self.hangs = False  # calls do not return until it is released
        self.released = threading.Event()
        self._calls: list[str] = []

    def asked(self, name: str) -> int:
        return self._calls.count(name)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls.append(name)
            if self.hangs:
                self.released.wait()
            if self.down or name in self.down_for:
                raise Outage("the database is switched off")
            answer = getattr(self._ledger, name)(*args, **kwargs)
            self.after.pop(name, lambda: None)()
            return answer

        return call


class RunningGateway:
    """A gateway under uvicorn, in a thread."""

    def __init__(self, topics: TopicConnection, ledger: Any, settings: Settings, clock: Clock) -> None:
        self.name = settings.name
        self._topics, self._ledger, self._settings, self._clock = topics, ledger, settings, clock
        self._bound = socket.create_server(("127.0.0.1", 0))
        self.port = self._bound.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._server: uvicorn.Server | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=settings.name)
        self._thread.start()
        end = time.monotonic() + WITHIN
        while not self._started():
            assert self._thread.is_alive() and time.monotonic() < end, self._error
            time.sleep(0.005)

    def stop(self) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join()
        self._bound.close()
        assert self._error is None, self._error

    def _started(self) -> bool:
        return self._server is not None and self._server.started

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as exc:
            self._error = exc

    async def _serve(self) -> None:
        self.gateway = Gateway(self._settings, self._topics.driver, self._ledger, self._clock)
        await self.gateway.begin(await asyncio.to_thread(starts_of, self._topics.driver, self._clock))
        try:
            self._server = uvicorn.Server(config_of(self.gateway, Address(topics="", db="")))
            await self._server.serve([self._bound])
        finally:
            await self.gateway.dismiss()
            await self.gateway.end()


class Site:
    """Topics, a database and what runs on them."""

    def __init__(self, topics_url: str, db_url: str, folder: Path) -> None:
        self.topics_url, self.db_url, self.folder = topics_url, db_url, folder
        self.topics = connect_topics(topics_url)
        make_topics(self.topics)
        self.ledger = open_ledger(db_url)
        self.tokens = Tokens(SECRET, SystemClock())

    def close(self) -> None:
        self.ledger.close()
        self.topics.close()

    @contextmanager
    def gateway(
        self,
        *,
        clock: Clock | None = None,
        ledger: Any = None,
        topics: Any = None,
        origins: Origins | None = None,
        **limits: int,
    ) -> Iterator[RunningGateway]:
        settings = Settings(
            name=f"g-{new_token()}",
            secret=SECRET,
            images=self.folder / "images",
            limits=with_limits(limits) if limits else Limits(),
            origins=origins or Origins(),
        )
        running = RunningGateway(topics or self.topics, ledger or self.ledger, settings, clock or SystemClock())
        try:
            yield running
        finally:
            running.stop()

    @contextmanager
    def worker(self) -> Iterator[None]:
        watch = FdWatch()
        duty = WorkerTask(lambda: Session(self.topics_url, self.db_url, 10.0, watch.wake))
        service = Service(watch, duty)
        thread = threading.Thread(target=service.run)
        thread.start()
        try:
            yield
        finally:
            service.stop()
            thread.join()
            duty.close()
            watch.close()

    def person(self, name: str = "ann", lifetime: float = 86_400.0) -> "Person":
        """Add a user who is logged in, without the time that passwords take."""
        user = self.ledger.add_user(f"{name}-{new_token()}@example.org", "no hash")
        session = self.ledger.open_session(user.id, lifetime=lifetime, address="", agent="").id
        token, _ = Tokens(SECRET, SystemClock(), lifetime=lifetime).login(user.id, user.email, session)
        return Person(user.id, user.email, token)

    def room(self, *members: "Person", open: bool = False) -> str:
        """Make a room with members, whom nobody announced."""
        room = self.ledger.create_room("a room", members[0].id, open=open)
        for member in members[1:]:
            self.ledger.join(room.id, member.id)
        return room.id


class Person(msgspec.Struct, frozen=True):
    id: str
    email: str
    token: str

    @asynccontextmanager
    async def rest(self, gateway: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
        headers = {"Authorization": f"Bearer {self.token}"}
        async with httpx2.AsyncClient(base_url=gateway.address, headers=headers, timeout=30) as http:
            yield http

    @asynccontextmanager
    async def socket(self, gateway: RunningGateway, *rooms: str, **join: Any) -> "AsyncIterator[Client]":
        """Connect, and join rooms."""
        client = Client()
        await client.connect(gateway, {"token": self.token})
        try:
            for room in rooms:
                ack = await client.ask("joinRoom", {"roomId": room, **join})
                assert ack["success"], ack
            yield client
        finally:
            await client.close()


class Client:
    """A socket that remembers every event."""

    def __init__(self) -> None:
        self._client = socketio.AsyncClient(reconnection=False)
        self.heard: list[tuple[str, Any]] = []
        self.disconnected = asyncio.Event()
        for event in EVENTS:
            self._client.on(event, functools.partial(self._note, event))
        self._client.on("disconnect", lambda *reason: self.disconnected.set())

    async def connect(self, gateway: RunningGateway | str, auth: object, transport: str = "websocket") -> None:
        address = gateway if isinstance(gateway, str) else gateway.address
        await self._client.connect(address, auth=auth, transports=[transport])

    async def ask(self, event: str, body: object, *, patience: float = WITHIN) -> Any:
        return await self._client.call(event, body, timeout=patience)

    async def emit(self, event: str, body: object) -> None:
        await self._client.emit(event, body)

    async def send(self, room: str, content: str, *, id: str = "", type: str = "TEXT", patience: float = WITHIN) -> Any:
        body = {"roomId": room, "clientMsgId": id or str(uuid.uuid4()), "type": type, "content": content}
        return await self.ask("sendMessage", body, patience=patience)

    def of(self, event: str) -> list[Any]:
        return [data for name, data in self.heard if name == event]

    @property
    def texts(self) -> list[str]:
        return [message["content"] for message in self.of("newMessage")]

    async def until_texts(self, count: int) -> None:
        await until(lambda: len(self.texts) >= count, f"{count} messages")

    @property
    def sequences(self) -> list[int]:
        return [message["sequence"] for message in self.of("newMessage")]

    async def close(self) -> None:
        await self._client.disconnect()
        await asyncio.sleep(0)

    def _note(self, event: str, data: Any = None) -> None:
        self.heard.append((event, data))


def raw(gateway: RunningGateway) -> "connect":
    return connect(f"ws://127.0.0.1:{gateway.port}/socket.io/?EIO=4&transport=websocket", max_size=1 << 24)


async def logged_in(wire: ClientConnection, token: str) -> None:
    assert str(await wire.recv()).startswith("0")
    await wire.send("40" + json.dumps({"token": token}))
    assert str(await wire.recv()).startswith("40")
