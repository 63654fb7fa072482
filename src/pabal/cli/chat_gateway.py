"""`pabal chat gateway`: one gateway of a chat."""

from __future__ import annotations

import os
from pathlib import Path

import click

from pabal.cli.chat_options import extra, limit_option, limits_of, log_to_stderr, own_name, places_options
from pabal.cli.values import lasting
from pabal.names import check_name

_SECRET = "PABAL_CHAT_SECRET"


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
    help=f"What signs tokens: 32 bytes or more, the same for all gateways. Else {_SECRET}.",
)
@click.option(
    "--token-lifetime", type=lasting, default="1d", metavar="TIME", help="How long a login lasts. By default 1d."
)
@click.option(
    "--behind-proxy",
    default="",
    metavar="ADDRESS",
    help="A proxy at this address does TLS and says who calls; several separated by commas.",
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
        from pabal.chat.gateway.app import Settings
        from pabal.chat.gateway.origins import Origins
        from pabal.chat.gateway.serving import Serving, serve

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    log_to_stderr()
    serve(
        Settings(
            name=check_name(name or own_name(port), "gateway"),
            secret=_secret(secret_file),
            images=images.absolute(),
            limits=limits_of(limits),
            origins=Origins(hosts=hosts, origins=origins),
            token_lifetime=token_lifetime,
        ),
        Serving(
            topics=topics,
            db=db,
            host=host,
            port=port,
            behind_proxy=behind_proxy,
            tls_cert=tls_cert,
            tls_key=tls_key,
            heartbeat=heartbeat,
        ),
        lambda address: click.echo(f"gateway   {address}, pid {os.getpid()}"),
    )


def _secret(path: Path | None) -> bytes:
    from pabal.chat.gateway.tokens import read_secret

    if path is not None:
        return read_secret(path)
    if _SECRET not in os.environ:
        raise click.UsageError(f"give --secret-file PATH or set {_SECRET}: 32 random bytes or more sign the tokens")
    return os.environ[_SECRET].encode()
