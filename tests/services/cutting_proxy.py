"""A TCP proxy on loopback that cuts connections: at once, or in the middle of what is being sent."""

import random
import select
import socket
import threading
from contextlib import suppress


class CuttingProxy:
    """Forwards to a port until told to cut. `wound` lets each connection die after some bytes, in either direction."""

    def __init__(self, port: int, *, seed: int = 0) -> None:
        self._target = port
        self._chance = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self._wound = 0
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._mutex = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def wound(self, most: int) -> None:
        """From now on cut every connection after at most so many bytes; 0 heals."""
        self._wound = most

    def cut(self) -> None:
        """Cut every connection at once."""
        with self._mutex:
            pairs = list(self._pairs)
        for pair in pairs:
            self._end(pair)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                near.close()
                continue
            pair = (near, far)
            with self._mutex:
                self._pairs.add(pair)
            threading.Thread(target=self._forward, args=(pair,), daemon=True).start()

    def _forward(self, pair: tuple[socket.socket, socket.socket]) -> None:
        left = self._chance.randrange(1, self._wound) if self._wound else -1
        try:
            while True:
                for ready in select.select(pair, (), (), 5)[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    other = pair[1] if ready is pair[0] else pair[0]
                    if 0 <= left <= len(data):
                        other.sendall(data[:left])  # the rest is lost on the way
                        return
                    left = left - len(data) if left >= 0 else -1
                    other.sendall(data)
        except (OSError, ValueError):
            return
        finally:
            self._end(pair)

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._mutex:
            if pair not in self._pairs:
                return
            self._pairs.remove(pair)
            self.cuts += 1
        for end in pair:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
