"""`pabal gateway`: a store over HTTP, for clients of Amazon SQS; and the keys of its clients."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pabal.cli.places import places_beside
from pabal.cli.session import TOPICS_VARIABLE, command, current_topics, current_url, json_option, topics_option
from pabal.cli.text import clean, json_text, table
from pabal.errors import ExtraMissing, InvalidInput

if TYPE_CHECKING:
    from pabal.apps.needs import Place
    from pabal.mcp.http import HttpAgents

TOKEN_VARIABLE = "PABAL_GATEWAY_TOKEN"
HEARTBEAT_VARIABLE = "PABAL_MANAGER_HEARTBEAT"  # set by `pabal up` for its gateway
_RIGHTS = ("send", "receive", "look", "manage")

keys_option = click.option(
    "--keys", "path", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The file of keys."
)


@click.group("gateway-keys")
def gateway_keys() -> None:
    """Make, list and remove the keys of clients of a gateway.

    Clients sign their requests with a key and its secret (AWS Signature 4).

    \b
    Examples:
      pabal gateway-keys add --keys gateway.keys --name shop --right send
      pabal gateway-keys list --keys gateway.keys
    """


@gateway_keys.command("add")
@keys_option
@click.option("--name", default="", metavar="NAME", help="Whose key it is; the sender of its messages.")
@click.option("--queue", "queues", multiple=True, metavar="PATTERN", help="Queues that it may use. Else all.")
@click.option("--right", "rights", multiple=True, type=click.Choice(_RIGHTS), help="What it may do. Else everything.")
@json_option
def add(path: Path, name: str, queues: tuple[str, ...], rights: tuple[str, ...], as_json: bool) -> None:
    """Make a key and print it with its secret.

    The secret is shown only now. A running gateway reads new keys when it is started again.

    \b
    Examples:
      pabal gateway-keys add --keys gateway.keys
      pabal gateway-keys add --keys gateway.keys --queue 'orders-*' --right send

    --json: accessKey, secret, name, queues, rights.
    """
    from pabal.gateway.signature import new_key, read_keys, write_keys

    if name:
        from pabal.names import check_name

        check_name(name, "name")
    key = new_key(name, queues, rights)
    write_keys(path, [*(read_keys(path) if path.exists() else []), key])
    if as_json:
        document = {"accessKey": key.access_key, "secret": key.secret, "name": key.name}
        click.echo(json_text({**document, "queues": list(key.queues), "rights": list(key.rights)}))
        return
    click.echo(f"AWS_ACCESS_KEY_ID={key.access_key}\nAWS_SECRET_ACCESS_KEY={key.secret}")


@gateway_keys.command("list")
@keys_option
@json_option
def list_keys(path: Path, as_json: bool) -> None:
    """List the keys, without their secrets.

    \b
    Example:
      pabal gateway-keys list --keys gateway.keys

    --json: keys [{accessKey, name, queues, rights}].
    """
    from pabal.gateway.signature import read_keys

    keys = read_keys(path)
    if as_json:
        shown = [
            {"accessKey": key.access_key, "name": key.name, "queues": list(key.queues), "rights": list(key.rights)}
            for key in keys
        ]
        click.echo(json_text({"keys": shown}))
        return
    rows = [[key.access_key, clean(key.name), clean(" ".join(key.queues)), " ".join(key.rights)] for key in keys]
    click.echo("\n".join(table(["key", "name", "queues", "rights"], rows)))


@gateway_keys.command("remove")
@keys_option
@click.argument("access_key", metavar="KEY")
def remove(path: Path, access_key: str) -> None:
    """Remove a key. A running gateway knows it until it is started again.

    \b
    Example:
      pabal gateway-keys remove --keys gateway.keys PABALQ4TZ3XW7RJ2ABCD
    """
    from pabal.gateway.signature import read_keys, write_keys

    keys = read_keys(path)
    kept = [key for key in keys if key.access_key != access_key]
    if len(kept) == len(keys):
        raise InvalidInput(f"no key {access_key:.40} in {path}: see `pabal gateway-keys list --keys {path}`")
    write_keys(path, kept)
    click.echo(f"removed {access_key}")


@command("gateway")
@topics_option(envvar=TOPICS_VARIABLE, otherwise="the store itself, if it is SQLite")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to serve at.")
@click.option("--port", type=click.IntRange(0, 65535), default=9324, show_default=True, help="0 takes a free one.")
@click.option(
    "--keys", type=click.Path(path_type=Path), metavar="FILE", help="Requests must be signed with one of them."
)
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Another name that clients call it by.")
@click.option("--read-only", is_flag=True, help="Show, and refuse all that changes something.")
@click.option("--team", "teams", multiple=True, metavar="DIR", help="A team to show. Else .ignite beside the store.")
@click.option("--kingdom", "homes", multiple=True, metavar="DIR", help="A kingdom to show. Else that of the store.")
def gateway(
    host: str,
    port: int,
    keys: Path | None,
    hosts: tuple[str, ...],
    read_only: bool,
    teams: tuple[str, ...],
    homes: tuple[str, ...],
) -> None:
    """Serve a store over HTTP: a dashboard, SQS, and plain calls.

    boto3, the aws command and other SDKs work unchanged with `endpoint_url`. Several gateways may serve one store. It
    ends on SIGTERM or Ctrl-C, after the requests under way. Without --keys only this machine is served.

    \b
    Examples:
      pabal gateway --url sqlite:jobs.db
      aws --endpoint-url http://127.0.0.1:9324 sqs list-queues
      pabal gateway --host 0.0.0.0 --keys gateway.keys

    Without keys the dashboard has a new token at each start, or that of the variable PABAL_GATEWAY_TOKEN. It also
    answers /mcp (for agents), /openapi.json (the plain calls), /healthz, /readyz, /metrics (for Prometheus), and
    /_aws/sqs/messages, which shows messages without leasing them.
    """
    try:
        from pabal.gateway.serve import Settings, serve
    except ImportError as exc:
        raise ExtraMissing(
            f"pabal gateway needs {exc.name}: install Pabal with its extra 'gateway' (README, Extras)"
        ) from exc
    from pabal.runtime.logs import log_lines

    places = partial(places_beside, teams, homes, _folder(current_url()))
    places()  # once before anybody waits: it loads the applications
    settings = Settings(
        url=current_url(),
        host=host,
        port=port,
        keys=keys,
        hosts=hosts,
        read_only=read_only,
        topics=current_topics() or _topics_beside(current_url()),
        heartbeat=Path(found) if (found := os.environ.get(HEARTBEAT_VARIABLE)) else None,
        token=os.environ.get(TOKEN_VARIABLE, ""),
        places=places,
        agents=partial(_agents, current_url(), places),
        person=_person(),
    )
    with log_lines("gateway"):
        serve(settings, _announce)


def _topics_beside(url: str) -> str:
    """Return the URL of the topics in the database of the queues; empty if that cannot have any."""
    return url.partition("?")[0] if url.startswith("sqlite:") else ""


def _agents(url: str, places: Callable[[], Sequence[Place]]) -> HttpAgents:
    try:
        from pabal.mcp.http import HttpAgents
    except ImportError as exc:
        raise ExtraMissing(f"/mcp needs {exc.name}: install Pabal with its extra 'mcp' (README, Extras)") from exc

    def find_team() -> Path | None:
        return next((Path(place.path) for place in places() if place.source == "ignite"), None)

    return HttpAgents(url, find_team)


def _person() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        return "somebody"


def _folder(url: str) -> Path:
    """Return the folder of a store; of one on a server this folder."""
    from pabal.connect import parse_url

    scheme, path = parse_url(url)
    return path.absolute().parent if scheme in ("sqlite", "file", "hybrid", "mailbox") else Path.cwd()


def _announce(address: str, token: str) -> None:
    """Print where to look at the queues, and where SQS is served. A token that was given is not printed."""
    shown = "" if os.environ.get(TOKEN_VARIABLE) else token
    click.echo(f"dashboard at {address}/{f'?token={shown}' if shown else ''}")
    click.echo(f"serving SQS at {address}")
