"""A bot for the chat: answers `!echo TEXT` with the text, in every room that its user is a member of.

Run it as `python bot.py ADDRESS EMAIL PASSWORD`. The account is made if it does not exist; invite it to rooms as you
invite people. It needs the packages httpx2, python-socketio and aiohttp.

It shows what a client must do to lose nothing and answer nothing twice: it joins each room from the last sequence that
it has handled, and the id of an answer is made from the id of the message that it answers.
"""

import asyncio
import sys
import uuid
from typing import Any

import httpx2
import socketio

HEARTBEAT = 20.0  # seconds
ANSWERS = uuid.UUID("9b3f5a52-6d0e-4f55-8a3c-1f4d1c0a7e11")  # any UUID that is yours


class Bot:
    def __init__(self, address: str) -> None:
        self.http = httpx2.AsyncClient(base_url=address, timeout=30)
        self.socket = socketio.AsyncClient()
        self.handled: dict[str, int] = {}  # by room: the last sequence; a bot that must survive a restart keeps it
        self.user = ""
        self.socket.on("connect", self.join_all)
        self.socket.on("membership", self.belongs)
        self.socket.on("newMessage", self.heard)

    async def log_in(self, email: str, password: str) -> None:
        account = {"email": email, "password": password}
        await self.http.post("/auth/register", json=account)  # 409 if it is there
        session = (await self.http.post("/auth/login", json=account)).raise_for_status().json()
        self.user = session["user"]["id"]
        self.http.headers["Authorization"] = f"Bearer {session['accessToken']}"

    async def run(self, address: str) -> None:
        token = self.http.headers["Authorization"].removeprefix("Bearer ")
        await self.socket.connect(address, auth={"token": token}, transports=["websocket"])
        print("listening", flush=True)
        while True:
            await asyncio.sleep(HEARTBEAT)
            if self.socket.connected:
                await self.socket.call("heartbeat", {})

    async def join_all(self) -> None:
        for room in (await self.http.get("/rooms", params={"limit": 100})).raise_for_status().json()["rooms"]:
            await self.join(room["id"], room["lastSequence"])

    async def belongs(self, event: dict[str, Any]) -> None:
        if event["member"]:
            await self.join(event["roomId"], 0)

    async def join(self, room: str, sequence: int) -> None:
        last = self.handled.setdefault(room, sequence)
        await self.socket.call("joinRoom", {"roomId": room, "lastSequence": last})

    async def heard(self, message: dict[str, Any]) -> None:
        room, text = message["roomId"], message["content"]
        self.handled[room] = max(self.handled.get(room, 0), message["sequence"] or 0)
        if message["type"] == "TEXT" and message["senderId"] != self.user and text.startswith("!echo "):
            await self.send(room, text.removeprefix("!echo "), uuid.uuid5(ANSWERS, message["id"]))

    async def send(self, room: str, text: str, id: uuid.UUID) -> None:
        """Send until it is accepted: with the same id it is stored once."""
        body = {"roomId": room, "clientMsgId": str(id), "content": text}
        for pause in (0.0, 1.0, 2.0, 5.0, 10.0):
            await asyncio.sleep(pause)
            try:
                answer: Any = await self.socket.call("sendMessage", body, timeout=10)
            except (socketio.exceptions.TimeoutError, socketio.exceptions.BadNamespaceError):
                continue
            if answer["status"] == "ACCEPTED" or answer["error"]["code"] not in ("TooOften", "Unavailable"):
                return


async def main(address: str, email: str, password: str) -> None:
    bot = Bot(address)
    await bot.log_in(email, password)
    await bot.run(address)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
