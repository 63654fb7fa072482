"""A real PostgreSQL server for the tests: its own data, its own port on loopback, started once and stopped by its pid.

Debian's package is installed by `scripts/system-packages`. Nothing of a server that the machine may run is touched.
"""

import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

DEBIAN = "/usr/lib/postgresql/*/bin/initdb"  # where Debian's packages put it, which is not on the PATH

# Ends the server when whoever started it is gone without a word: its end of the pipe closes.
_GUARD = "import os, shutil, sys; sys.stdin.read(); os.kill(int(sys.argv[1]), 3); shutil.rmtree(sys.argv[2], True)"
_SETTINGS = {
    "listen_addresses": "'127.0.0.1'",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_connections": "200",
    "shared_buffers": "'64MB'",
    "wal_recycle": "off",
    "wal_init_zero": "off",
    "max_wal_size": "'256MB'",
    "autovacuum_naptime": "'10s'",
    "logging_collector": "off",
    "dynamic_shared_memory_type": "mmap",  # in the folder of the server: one that is killed leaves nothing elsewhere
}


def binaries() -> Path | None:
    """Return the folder of the newest server's programs, or None."""
    found = [Path(path).parent for path in glob.glob(DEBIAN)]
    if found:
        return max(found, key=lambda path: float(path.parts[-2]))
    program = shutil.which("initdb")
    return Path(program).parent if program else None


class PostgresServer:
    """One server in a temporary folder, with one database `test`."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._programs = programs
        self._data = folder / "data"
        self._log = folder / "server.log"
        self._folder = folder
        self._user = server_user()
        if self._user:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        self._as_user("initdb", "-D", str(self._data), "-U", "test", "-A", "trust", "-E", "UTF8", "--locale", "C.UTF-8")
        self.port = free_port()
        lines = [f"{name} = {value}" for name, value in _SETTINGS.items()]
        lines += [f"port = {self.port}", f"unix_socket_directories = '{folder}'"]
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join(lines) + "\n")
        self.start()

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which libpq, and so `postgresql:///`, finds this server."""
        return {"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": "test", "PGDATABASE": "postgres"}

    def url_at(self, port: int) -> str:
        """Return the URL of the database through a port, this server's or a proxy's."""
        return f"postgresql://test@127.0.0.1:{port}/postgres"

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(self._data)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
                start_new_session=True,
                **self._identity(),  # type: ignore[call-overload]  # keywords of Popen
            )
        self._guard = subprocess.Popen(
            [sys.executable, "-S", "-c", _GUARD, str(self._process.pid), str(self._folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        end = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, f"the server ended: {self._log.read_text()[-2000:]}"
                assert time.monotonic() < end, "the server does not answer"
                time.sleep(0.05)

    def stop(self) -> None:
        """Shut it down, cutting off whoever is connected."""
        self._dismiss_guard()
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)

    def hang(self) -> None:
        """Let it and all its processes keep their connections and answer nothing."""
        os.kill(self._process.pid, signal.SIGSTOP)  # first, so that it starts no more of them
        for pid in _children(self._process.pid):
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it answer again."""
        for pid in (*_children(self._process.pid), self._process.pid):
            os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the server and all its processes at once, as a crash of the machine's software would."""
        self._dismiss_guard()
        pids = [self._process.pid, *_children(self._process.pid)]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait(60)
        while any(_alive(pid) for pid in pids):
            time.sleep(0.01)

    def _dismiss_guard(self) -> None:
        self._guard.kill()
        self._guard.communicate()

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Run SQL as the test's own."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def schema(self) -> Iterator[str]:
        """Name a schema for one test, dropped after it."""
        name = f"t_{uuid.uuid4().hex[:12]}"
        yield name
        self.execute(f"drop schema if exists {name} cascade")

    def _as_user(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self._folder,
            **self._identity(),  # type: ignore[call-overload]  # keywords of Popen
        )

    def _identity(self) -> dict[str, object]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


@contextmanager
def running() -> Iterator[PostgresServer]:
    """Run a server for the time of a block."""
    programs = binaries()
    assert programs is not None
    with tempfile.TemporaryDirectory(prefix="pabal-pg-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(Path(folder), programs)
        try:
            yield server
        finally:
            server.kill()


def server_user() -> pwd.struct_passwd | None:
    """Return who the server runs as: it will not run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("root needs a user `postgres` or `nobody` to run PostgreSQL as")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
