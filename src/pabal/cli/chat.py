"""`pabal chat`: a chat in one command, or its gateways and workers as separate processes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pabal.cli.chat_operators import OPERATORS, SECRET, extra, read_key, root_option
from pabal.cli.exits import end_with_nothing
from pabal.cli.session import help_if_alone, json_option, own_argv
from pabal.cli.text import clean, json_text, table
from pabal.cli.values import lasting, pair, unique
from pabal.clock import SystemClock
from pabal.names import check_name, local_name
from pabal.runtime.logs import log_lines

if TYPE_CHECKING:
    from pabal.apps.chat.gateway.limits import Limits
    from pabal.apps.chat.status import ChatStatus, LocalStatus


F = TypeVar("F", bound=Callable[..., Any])


def places_options(function: F) -> F:
    for option in (
        click.option(
            "--heartbeat",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="A file in which it counts that it is alive.",
        ),
        click.option(
            "--name", metavar="NAME", help="A name that no other one has. By default host and port or process."
        ),
        click.option(
            "--db",
            required=True,
            envvar="PABAL_CHAT_DB",
            metavar="URL",
            help="The database: sqlite:PATH or postgresql://HOST/DB. Else PABAL_CHAT_DB.",
        ),
        click.option(
            "--topics",
            required=True,
            envvar="PABAL_CHAT_TOPICS",
            metavar="URL",
            help="The topics: sqlite:PATH or kafka://HOST:PORT. Else PABAL_CHAT_TOPICS.",
        ),
    ):
        function = option(function)
    return function


limit_option = click.option(
    "--limit",
    "limits",
    type=pair,
    multiple=True,
    metavar="NAME=N",
    help="Another limit than the usual, such as sends=50; may be repeated.",
)


def limits_of(given: tuple[tuple[str, str], ...]) -> Limits:
    from pabal.apps.chat.gateway.limits import with_limits

    found = unique(given, "--limit")
    for name, text in found.items():
        if not re.fullmatch(r"[0-9]{1,12}", text):
            raise click.UsageError(f"--limit {name} is a whole number; found {text!r:.40}")
    return with_limits({name: int(text) for name, text in found.items()})


@click.command("gateway")
@places_options
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Where to listen. By default 127.0.0.1.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, metavar="N", help="The port. By default 8080.")
@click.option(
    "--images",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".pabal/chat/images"),
    metavar="DIR",
    help="Where images are kept; gateways of one chat share it. By default .pabal/chat/images.",
)
@click.option(
    "--secret-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help=f"What signs tokens: 32 bytes or more, the same for all gateways. Else {SECRET}.",
)
@click.option(
    "--token-lifetime", type=lasting, default="1d", metavar="TIME", help="How long a login lasts. By default 1d."
)
@click.option(
    "--behind-proxy",
    default="",
    metavar="ADDRESS",
    help="A proxy at this address does TLS and reports the addresses of clients; several separated by commas.",
)
@click.option(
    "--tls-cert",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="PATH",
    help="A certificate, for TLS of our own.",
)
@click.option(
    "--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="PATH", help="Its key."
)
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="A name that we are called by; may be repeated."
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="A page elsewhere that may call us; may be repeated.",
)
@click.option(
    "--metrics-from",
    "metrics_from",
    multiple=True,
    metavar="ADDRESS",
    help="An address beside loopback that may read /metrics; may be repeated.",
)
@limit_option
def gateway(
    topics: str,
    db: str,
    name: str | None,
    heartbeat: Path | None,
    host: str,
    port: int,
    images: Path,
    secret_file: Path | None,
    token_lifetime: float,
    behind_proxy: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    metrics_from: tuple[str, ...],
    limits: tuple[tuple[str, str], ...],
) -> None:
    """Serve REST, Socket.IO and the page, one of any number.

    Takes messages in while the database is down. Listens on loopback, unless TLS is given or a proxy is in front that
    does it. Each gateway of a chat has a name of its own; all share the secret.

    \b
    Examples:
      pabal chat gateway --topics sqlite:topics.db --db sqlite:chat.db
      pabal chat gateway --topics kafka://k1:9092 --db postgresql://db/chat \\
        --host 0.0.0.0 --behind-proxy 10.0.0.5 --allow-host chat.example.org
    """
    with extra():
        from pabal.apps.chat.gateway.app import Settings
        from pabal.apps.chat.gateway.serve import Address, serve
        from pabal.runtime.origins import Origins

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    name = check_name(name or local_name(port), "gateway")
    settings = Settings(
        name=name,
        secret=read_key(secret_file),
        images=images.absolute(),
        limits=limits_of(limits),
        origins=Origins(hosts=hosts, origins=origins),
        token_lifetime=token_lifetime,
        metrics_from=metrics_from,
    )
    address = Address(
        topics=topics,
        db=db,
        host=host,
        port=port,
        behind_proxy=behind_proxy,
        tls_cert=tls_cert,
        tls_key=tls_key,
        heartbeat=heartbeat,
    )
    with log_lines(name):
        serve(settings, address, lambda url: click.echo(f"gateway   {url}, pid {os.getpid()}"))


@click.command("status")
@root_option
@click.option("--topics", metavar="URL", help="The topics of a chat at scale, with --db, instead of a folder.")
@click.option("--db", metavar="URL", help="The database of a chat at scale.")
@json_option
def status(root: Path, topics: str | None, db: str | None, as_json: bool) -> None:
    """Show how a chat is: processes, database, what waits.

    Ends with 1 if nothing is stored: the database does not answer, or no worker is at work.

    \b
    Examples:
      pabal chat status
      pabal chat status --topics kafka://k1:9092 --db postgresql://db/chat
    """
    with extra():
        from pabal.apps.chat.status import chat_status, document_of, local_status
        from pabal.apps.chat.up import ChatFolder

    if (topics is None) != (db is None):
        raise click.UsageError("--topics and --db go together")
    place = ChatFolder(root)
    found = None if topics else local_status(place, SystemClock())
    seen = chat_status(topics or place.topics, db or place.db)
    if as_json:
        click.echo(json_text({**(document_of(found) if found else {}), **document_of(seen)}))
    else:
        click.echo("\n".join(_lines(found, seen)))
    if not seen.storing or found is not None and found.worker != "ok":
        end_with_nothing("nothing is stored: no worker is at work, or the database does not answer")


def _lines(found: LocalStatus | None, seen: ChatStatus) -> list[str]:
    facts: dict[str, object] = {}
    if found is not None:
        up = f"up, pid {found.pid}" if found.pid else "not up: `pabal chat up` starts it"
        facts |= {"chat": f"{found.root}, {up}", "address": found.address}
        facts |= {"gateway": found.gateway, "worker": found.worker}
        facts |= {"restarts": ", ".join(f"{name} {count}" for name, count in found.restarts.items()) or "none"}
    facts |= {"database": seen.database, "to store": seen.to_store}
    facts |= {"to publish": "?" if seen.to_publish is None else seen.to_publish, "rejected": seen.rejected}
    facts |= {"new users": seen.registration or "?"}
    lines = [f"{name:<12}{clean(str(value))}" for name, value in facts.items()]
    workers = [[worker.name, str(worker.partitions), str(worker.lag)] for worker in seen.workers]
    gateways = [[gateway.name, str(gateway.lag)] for gateway in seen.gateways]
    if workers:
        lines += ["", *table(["WORKER", "PARTITIONS", "LAG"], workers, right=" rr")]
    if gateways:
        lines += ["", *table(["GATEWAY", "LAG"], gateways, right=" r")]
    return lines


_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "PYTHONPATH", "PYTHONWARNINGS")
_UP = """\
chat      {address}
folder    {root}
log       {root}/chat.log

Open the address, register, make a room. Ctrl-C stops it; nothing is lost.\
"""


@click.group("chat", invoke_without_command=True)
@click.pass_context
def chat(ctx: click.Context) -> None:
    """A chat: rooms, messages, images, in one command or at scale.

    \b
    Examples:
      pabal chat up
      pabal chat gateway --topics kafka://k1:9092 --db postgresql://db/chat
      pabal chat worker --topics kafka://k1:9092 --db postgresql://db/chat
    """
    help_if_alone(ctx)


@chat.command("up")
@root_option
@click.option("--port", type=click.IntRange(0, 65535), default=8080, metavar="N", help="The port. By default 8080.")
@limit_option
def up(root: Path, port: int, limits: tuple[tuple[str, str], ...]) -> None:
    """Run a whole chat on this machine: topics, database, page.

    Everything lies in one folder. A gateway and a worker are started, and started again if they end. Serves on
    loopback until Ctrl-C or SIGTERM. With port 0 a free one is taken.

    \b
    Examples:
      pabal chat up
      pabal chat up --root /srv/chat --port 8000
    """
    with extra():
        from pabal.apps.chat.up import ChatFolder, run_chat

    limits_of(limits)
    place = ChatFolder(root)
    with log_lines("up", place.log):
        run_chat(
            place,
            port,
            own_argv,
            more=[part for name, number in limits for part in ("--limit", f"{name}={number}")],
            variables={name: os.environ[name] for name in _KEPT if name in os.environ},
            started=lambda address: click.echo(_UP.format(address=address, root=place.root)),
        )
    click.echo("stopped; everything is on disk")


@chat.command("worker")
@places_options
def worker(topics: str, db: str, name: str | None, heartbeat: Path | None) -> None:
    """Store and publish what gateways take in.

    Several workers share the rooms. While the database is down they wait; nothing is lost and nothing is rejected.

    \b
    Examples:
      pabal chat worker --topics sqlite:topics.db --db sqlite:chat.db
      pabal chat worker --topics kafka://k1:9092 --db postgresql://db/chat
    """
    from pabal.apps.chat.worker import run_worker

    name = check_name(name or local_name(os.getpid()), "worker")
    with log_lines(name):
        run_worker(topics, db, name, heartbeat=heartbeat)


for _command in (gateway, status, *OPERATORS):
    chat.add_command(_command)
