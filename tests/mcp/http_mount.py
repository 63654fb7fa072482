"""The server over streamable HTTP, as a process of its own: prints its port, and ends when stdin is closed.

Only for tests. It takes the URL of a store.
"""

import socket
import sys
import threading

import uvicorn

from pabal.mcp.queue_desk import QueueDesk
from pabal.mcp.server import AgentServer


def main(url: str) -> None:
    desk = QueueDesk(url)
    listener = socket.create_server(("127.0.0.1", 0))
    app = AgentServer(desk).server.streamable_http_app()
    server = uvicorn.Server(uvicorn.Config(app, http="h11", log_level="warning"))

    def end_with_stdin() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end_with_stdin, daemon=True).start()
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    server.run([listener])
    desk.close()


if __name__ == "__main__":
    main(sys.argv[1])
