"""Clients of Socket.IO that do as little as one can, so that a server is measured and not they: frames over WebSocket.

A message carries the number of its sender and the moment it was sent; nothing else of it is read.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial

from websockets.asyncio.client import ClientConnection, connect

PADDING = "x" * 200
_PING, _PONG = "2", "3"
_NEW, _ACK = '42["newMessage"', "43"

# Is told the sender's number, and how many nanoseconds after it was sent the message came.
Received = Callable[[str, int], None]


class Client:
    """One socket in one room."""

    def __init__(self, link: ClientConnection, room: str, number: int, received: Received) -> None:
        self._link, self._room, self._number, self._received = link, room, number, received
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def join(cls, port: int, token: str, room: str, number: int, received: Received) -> "Client":
        """Connect, log in and enter the room."""
        link = await connect(f"ws://127.0.0.1:{port}/socket.io/?EIO=4&transport=websocket", compression=None)
        await link.recv()
        await link.send(f"40{json.dumps({'token': token})}")
        assert str(await link.recv()).startswith("40")
        await link.send(f"420{json.dumps(['joinRoom', {'roomId': room}])}")
        answer = str(await link.recv())
        assert answer.startswith("430") and '"success":true' in answer.replace(" ", ""), answer
        return cls(link, room, number, received)

    async def send(self) -> None:
        content = f"<{self._number} {time.perf_counter_ns()}>{PADDING}"
        body = {"roomId": self._room, "clientMsgId": str(uuid.uuid4()), "type": "TEXT", "content": content}
        await self._link.send(f"421{json.dumps(['sendMessage', body])}")

    async def close(self) -> None:
        self._reading.cancel()
        await self._link.close()

    async def _read(self) -> None:
        async for frame in self._link:
            assert isinstance(frame, str)
            if frame.startswith(_NEW):
                number, _, at = frame[frame.index("<") + 1 : frame.index(">")].partition(" ")
                self._received(number, time.perf_counter_ns() - int(at))
            elif frame == _PING:
                await self._link.send(_PONG)
            else:
                assert not frame.startswith(_ACK) or "ACCEPTED" in frame, frame


class Arrivals:
    """How long messages took, and a way to wait for so many of them."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self._wanted = 0
        self._there = asyncio.Event()

    def note(self, number: str, after: int) -> None:
        self.taken.append(after)
        if len(self.taken) >= self._wanted:
            self._there.set()

    async def reach(self, count: int, seconds: float) -> bool:
        """Wait until so many have come; say whether they have."""
        self._wanted = count
        self._there.clear()
        try:
            if len(self.taken) < count:
                await asyncio.wait_for(self._there.wait(), seconds)
        except TimeoutError:
            return False
        return True


class Crowd:
    """Clients of one server, two or more in each room, of which each has some messages on their way."""

    def __init__(self) -> None:
        self._clients: list[Client] = []
        self._back = asyncio.Queue[int]()

    @classmethod
    async def gather(cls, port: int, tokens: Sequence[str], rooms: Sequence[str]) -> "Crowd":
        crowd = cls()
        for number, token in enumerate(tokens):
            room = rooms[number % len(rooms)]
            crowd._clients.append(await Client.join(port, token, room, number, partial(crowd._received, number)))
        return crowd

    async def push(self, ahead: int, seconds: float, patience: float) -> float:
        """Keep messages on their way for a while, wait for the last; return how many per second went through."""
        start = time.perf_counter()
        for client in self._clients:
            for _ in range(ahead):
                await client.send()
        away, through = len(self._clients) * ahead, 0
        while away:
            number = await asyncio.wait_for(self._back.get(), patience)
            away, through = away - 1, through + 1
            if time.perf_counter() - start < seconds:
                await self._clients[number].send()
                away += 1
        return through / (time.perf_counter() - start)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    def _received(self, own: int, number: str, after: int) -> None:
        if number == str(own):
            self._back.put_nowait(own)
