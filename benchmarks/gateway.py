"""The gateway beside other servers of SQS on this machine, ElasticMQ and moto's, each asked in the same way.

The client writes requests in JSON to kept connections and reads the answers, and does nothing else, so that the servers
are measured and no SDK. Ours is on SQLite and syncs every message to disk; the others keep messages in memory.
"""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from contest import Ratio
from scale import Scale

sys.path.insert(0, str(Path(__file__).parent.parent))  # for what the tests bring from registries

OURS, PEERS = "gateway", ("ElasticMQ", "moto")
CLIENTS = (1, 16)
BATCHES = (1, 10)
_BODY = "x" * 1024
_POM = Path(__file__).parent / "elasticmq" / "pom.xml"
_PATIENCE = 60.0  # seconds for the first answer
_AHEAD = 480  # messages that wait before receiving is measured; more would take moto minutes


class Server:
    """A running server, and one queue in it."""

    def __init__(self, name: str, address: tuple[str, int]) -> None:
        self.name = name
        self.address = address
        self.queue = ""


@contextmanager
def servers(place: Path) -> Iterator[list[Server]]:
    """Start all three, and end them."""
    place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        started = []
        for name, command in (
            (OURS, _pabal(place)),
            ("ElasticMQ", _elasticmq()),
            ("moto", [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "{port}"]),
        ):
            port = _free_port()
            with (place / f"{name}.log").open("wb") as log:
                process = subprocess.Popen(
                    [part.replace("{port}", str(port)) for part in command], stdout=log, stderr=log, cwd=place
                )
            stack.callback(process.wait)
            stack.callback(process.kill)
            _wait_for(port, process)
            started.append(Server(name, ("127.0.0.1", port)))
        yield started


def _pabal(place: Path) -> list[str]:
    script = "from pabal.cli.main import main; main()"
    return [sys.executable, "-c", script, "gateway", "--url", f"sqlite:{place}/jobs.db", "--port", "{port}"]


def missing() -> str:
    """Say what keeps ElasticMQ from being started here, after trying to bring its jars; '' if nothing does."""
    from tests.services import bringing

    return bringing.missing(("mvn", "java"), _jars, "the jars of ElasticMQ, which Maven")


def _jars() -> Path:
    from tests.services.bringing import TIMEOUT, brought

    def bring(folder: Path) -> None:
        command = ["mvn", "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT)

    return brought("elasticmq", _POM, bring)


def _elasticmq() -> list[str]:
    options = ["-Drest-sqs.bind-port={port}", "-Dnode-address.port={port}", "-Drest-stats.enabled=false"]
    return ["java", "-Xmx512m", *options, "-cp", f"{_jars()}/*", "org.elasticmq.server.Main"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + 120
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None and time.monotonic() < end, "a server does not come up"
        time.sleep(0.1)


class Client:
    """One connection that is kept."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def open(self) -> "Client":
        self._reader, self._writer = await asyncio.open_connection(*self._server.address)
        self._writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self

    async def ask(self, action: str, **given: Any) -> Any:
        body = json.dumps(given).encode()
        host, port = self._server.address
        self._writer.write(
            f"POST / HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/x-amz-json-1.0\r\n"
            f"X-Amz-Target: AmazonSQS.{action}\r\nContent-Length: {len(body)}\r\n"
            "Authorization: AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/sqs/aws4_request, SignedHeaders=host,"
            " Signature=0\r\nX-Amz-Date: 20260101T000000Z\r\n\r\n".encode()
            + body
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        assert " 200 " in head.partition("\r\n")[0], head
        if "transfer-encoding: chunked" in head:
            parts = []
            while size := int(await self._reader.readline(), 16):
                parts.append(await self._reader.readexactly(size))
                await self._reader.readline()
            await self._reader.readline()
            answer = b"".join(parts)
        else:
            answer = await self._reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
        if "connection: close" in head:  # moto's server keeps none
            self.close()
            await self.open()
        return json.loads(answer) if answer else {}

    def close(self) -> None:
        self._writer.close()

    async def send(self, many: int) -> None:
        if many == 1:
            await self.ask("SendMessage", QueueUrl=self._server.queue, MessageBody=_BODY)
        else:
            entries = [{"Id": str(n), "MessageBody": _BODY} for n in range(many)]
            await self.ask("SendMessageBatch", QueueUrl=self._server.queue, Entries=entries)

    async def take(self, many: int) -> int:
        """Receive and delete; return how many there were."""
        queue = self._server.queue
        found = (await self.ask("ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=many)).get("Messages", [])
        if len(found) == 1:
            await self.ask("DeleteMessage", QueueUrl=queue, ReceiptHandle=found[0]["ReceiptHandle"])
        elif found:
            entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(found)]
            await self.ask("DeleteMessageBatch", QueueUrl=queue, Entries=entries)
        return len(found)


def rows() -> list[tuple[str, bool, int, int]]:
    """Return the title of each row, whether it sends, the size of its batches, and the number of clients."""
    return [
        (
            f"{'send' if sends else 'receive + delete'}, {'one at a time' if batch == 1 else 'in tens'},"
            f" {clients} client{'s' * (clients > 1)}",
            sends,
            batch,
            clients,
        )
        for batch in BATCHES
        for clients in CLIENTS
        for sends in (True, False)
    ]


def ratios(place: Path, scale: Scale) -> Iterator[tuple[str, dict[str, Ratio]]]:
    """Yield each row with the ratios of ours to the others, measured in turns."""
    ahead = min(_AHEAD, scale.small)
    with servers(place) as running:
        for server in running:
            asyncio.run(_make_queue(server))
            for sends in (True, False):  # a JVM compiles what it does often
                asyncio.run(_rate(server, sends, 10, 16, scale.slice * 30, ahead))
        for title, sends, batch, clients in rows():
            rounds: list[dict[str, float]] = []
            for _ in range(scale.backlog_rounds):
                seconds = scale.slice * 2
                rounds.append({s.name: asyncio.run(_rate(s, sends, batch, clients, seconds, ahead)) for s in running})
            yield title, {peer: _ratio(rounds, peer) for peer in PEERS}


def _ratio(rounds: list[dict[str, float]], peer: str) -> Ratio:
    found = [each[OURS] / each[peer] for each in rounds]
    rates = (median(each[name] for each in rounds) for name in (OURS, peer))
    return Ratio(median(found), min(found), max(found), *rates)


async def _make_queue(server: Server) -> None:
    client = await Client(server).open()
    server.queue = (await client.ask("CreateQueue", QueueName="bench"))["QueueUrl"]
    client.close()


async def _rate(server: Server, sends: bool, batch: int, clients: int, seconds: float, ahead: int) -> float:
    opened = await asyncio.gather(*(Client(server).open() for _ in range(clients)))
    if not sends:
        await asyncio.gather(*(_fill(client, max(1, ahead // clients)) for client in opened))
    done, begun = 0, time.perf_counter()

    async def work(client: Client) -> None:
        nonlocal done
        while True:
            if sends:
                await client.send(batch)
            count = batch if sends else await client.take(batch)
            done += count
            # A short slice lasts until something was done: nothing can be compared with a rate of 0.
            if time.perf_counter() - begun >= (seconds if done else _PATIENCE) or (done and not count):
                return

    await asyncio.gather(*map(work, opened))
    rate = done / (time.perf_counter() - begun)
    await opened[0].ask("DeleteQueue", QueueUrl=server.queue)
    for client in opened:
        client.close()
    await _make_queue(server)
    return rate


async def _fill(client: Client, many: int) -> None:
    for _ in range(0, many, 10):
        await client.send(10)
