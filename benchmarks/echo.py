"""The bare echo server beside the chat: python-socketio under uvicorn, which sends each message to its room at once.

Run as `python echo.py`: it prints its port. No token, no check, no disk.
"""

import asyncio
import socket
from typing import Any

import socketio
import uvicorn


def serve() -> None:
    server = socketio.AsyncServer(async_mode="asgi")

    async def join(sid: str, data: dict[str, Any]) -> dict[str, Any]:
        await server.enter_room(sid, data["roomId"])
        return {"success": True}

    async def send(sid: str, data: dict[str, Any]) -> dict[str, Any]:
        await server.emit("newMessage", data, to=data["roomId"])
        return {"clientMsgId": data["clientMsgId"], "status": "ACCEPTED"}

    server.on("joinRoom", join)
    server.on("sendMessage", send)
    bound = socket.create_server(("127.0.0.1", 0))
    print(bound.getsockname()[1], flush=True)
    config = uvicorn.Config(socketio.ASGIApp(server), log_level="error", lifespan="off")
    asyncio.run(uvicorn.Server(config).serve([bound]))


if __name__ == "__main__":
    serve()
