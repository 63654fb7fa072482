"""A real PgBouncer between the tests and their PostgreSQL server, on a free port of loopback."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.services.postgres import PostgresServer, free_port, server_user

PLACES = "/usr/sbin:/usr/local/sbin:/usr/bin"
_SIZES = {"transaction": 4, "session": 40}  # in session mode a client keeps its session for as long as it is connected
_SETTINGS = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 300
logfile = {folder}/log
"""


def program() -> str | None:
    return shutil.which("pgbouncer", path=PLACES) or shutil.which("pgbouncer")


@contextmanager
def running(server: PostgresServer, mode: str) -> Iterator[str]:
    """Run it in a mode, `session` or `transaction`, for the time of a block; give the URL that leads through it."""
    found = program()
    assert found is not None
    with tempfile.TemporaryDirectory(prefix="pabal-pgbouncer-") as name:
        folder, port, user = Path(name), free_port(), server_user()
        (folder / "users").write_text('"test" ""\n')
        settings = folder / "settings.ini"
        settings.write_text(
            _SETTINGS.format(server=server.port, port=port, folder=folder, mode=mode, size=_SIZES[mode])
        )
        identity: dict[str, object] = {}
        if user is not None:
            shutil.chown(folder, user.pw_uid, user.pw_gid)
            identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        process = subprocess.Popen(
            [found, "-q", str(settings)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **identity,  # type: ignore[call-overload]  # keywords of Popen
        )
        try:
            _await(port, process, folder)
            yield server.url_at(port)
        finally:
            process.terminate()
            process.wait(30)


def _await(port: int, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=2):
                return
        except OSError:
            assert process.poll() is None, f"PgBouncer ended: {(folder / 'log').read_text()[-2000:]}"
            assert time.monotonic() < end, "PgBouncer does not answer"
            time.sleep(0.05)


def count_sessions(server: PostgresServer) -> int:
    """Count the sessions of our stores on a server."""
    with psycopg.connect(server.url) as connection:
        found = connection.execute(
            "select count(*) from pg_stat_activity where application_name = 'pabal' and backend_type = 'client backend'"
        ).fetchone()
        return int(found[0]) if found else 0
