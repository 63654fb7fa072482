"""`pabal chat status`: how a chat is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pabal.cli.chat_options import extra
from pabal.cli.session import json_option
from pabal.cli.text import clean, json_text, table
from pabal.clock import SystemClock

if TYPE_CHECKING:
    from pabal.chat.looking import ChatLook, UpLook

root_option = click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".pabal/chat"),
    metavar="DIR",
    help="The folder of the chat. By default .pabal/chat.",
)


@click.command("status")
@root_option
@click.option("--topics", metavar="URL", help="The topics of a chat at scale, with --db, instead of a folder.")
@click.option("--db", metavar="URL", help="The database of a chat at scale.")
@json_option
def status(root: Path, topics: str | None, db: str | None, as_json: bool) -> None:
    """Show how a chat is: processes, database, what waits.

    \b
    Examples:
      pabal chat status
      pabal chat status --topics kafka://k1:9092 --db postgresql://db/chat
    """
    with extra():
        from pabal.chat.looking import document_of, look, look_up
        from pabal.chat.up import Place

    if (topics is None) != (db is None):
        raise click.UsageError("--topics and --db go together")
    place = Place(root)
    found = None if topics else look_up(place, SystemClock())
    seen = look(topics or place.topics, db or place.db)
    if as_json:
        click.echo(json_text({**(document_of(found) if found else {}), **document_of(seen)}))
    else:
        click.echo("\n".join(_lines(found, seen)))


def _lines(found: UpLook | None, seen: ChatLook) -> list[str]:
    facts: dict[str, object] = {}
    if found is not None:
        up = f"up, pid {found.pid}" if found.pid else "not up: `pabal chat up` starts it"
        facts |= {"chat": f"{found.root}, {up}", "address": found.address}
        facts |= {"gateway": found.gateway, "worker": found.worker}
    facts |= {"database": seen.database, "to store": seen.to_store}
    facts |= {"to publish": "?" if seen.to_publish is None else seen.to_publish, "rejected": seen.rejected}
    lines = [f"{name:<12}{clean(str(value))}" for name, value in facts.items()]
    if seen.gateways:
        rows = [[gateway.name, "yes" if gateway.live else "no", str(gateway.lag)] for gateway in seen.gateways]
        lines += ["", *table(["GATEWAY", "LIVE", "LAG"], rows, right="  r")]
    return lines
