"""`pabal chat users | rooms | invite | reset-password | registration | retention | audit`: the acts of an operator."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pabal.cli.session import json_option
from pabal.cli.text import clean, json_text, table
from pabal.cli.values import lasting
from pabal.clock import SystemClock, iso_stamp
from pabal.errors import ExtraMissing, StoreMissing

if TYPE_CHECKING:
    from pabal.apps.chat.ledger import Ledger
    from pabal.apps.chat.operators import Operator

F = TypeVar("F", bound=Callable[..., Any])

SECRET = "PABAL_CHAT_SECRET"
_PAGE = 500


@contextmanager
def extra() -> Iterator[None]:
    """Import the packages of the extra; raise ExtraMissing if one is not installed."""
    try:
        yield
    except ImportError as exc:
        raise ExtraMissing(f"the chat needs {exc.name}: install Pabal with its extra 'chat' (README, Extras)") from exc


root_option = click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".pabal/chat"),
    metavar="DIR",
    help="The folder of the chat. By default .pabal/chat.",
)


def read_key(path: Path | None) -> bytes:
    """Return the secret that signs tokens, from a file or from the environment."""
    from pabal.apps.chat.gateway.auth import read_secret

    if path is not None:
        return read_secret(path)
    if SECRET not in os.environ:
        raise click.UsageError(f"give --secret-file PATH or set {SECRET}: 32 random bytes or more sign the tokens")
    return os.environ[SECRET].encode()


def _place_options(function: F) -> F:
    for option in (
        json_option,
        click.option("--db", metavar="URL", envvar="PABAL_CHAT_DB", help="The database of a chat at scale."),
        root_option,
    ):
        function = option(function)
    return function


@contextmanager
def _opened(root: Path, db: str | None) -> Iterator[Ledger]:
    with extra():
        from pabal.apps.chat.ledger import open_ledger
        from pabal.apps.chat.up import ChatFolder

    place = ChatFolder(root)
    if db is None and not (place.root / "chat.db").is_file():
        raise StoreMissing(f"no chat in {place.root}: `pabal chat up` makes one, or give --root DIR or --db URL")
    with closing(open_ledger(db or place.db)) as ledger:
        yield ledger


@contextmanager
def _operator(root: Path, db: str | None) -> Iterator[Operator]:
    with _opened(root, db) as ledger:
        from pabal.apps.chat.operators import Operator

        yield Operator(ledger, getpass.getuser())


def _pages(page: Callable[..., Sequence[Any]], key: Callable[[Any], str]) -> Iterator[Any]:
    after = ""
    while found := page(after=after, limit=_PAGE):
        yield from found
        after = key(found[-1])


def _show(as_json: bool, head: list[str], right: str, documents: Iterable[dict[str, Any]]) -> None:
    """Print documents: each on a line, or the columns of the head as a table."""
    if as_json:
        for document in documents:
            click.echo(json_text(document))
        return
    rows = [[clean(_cell(value)) for value in list(document.values())[: len(head)]] for document in documents]
    if rows:
        click.echo("\n".join(table(head, rows, right=right)))


def _cell(value: object) -> str:
    return {True: "yes", False: "no", None: "-"}.get(value, str(value)) if value in (True, False, None) else str(value)


@click.command("users")
@_place_options
def users(root: Path, db: str | None, as_json: bool) -> None:
    """List the users of a chat.

    \b
    Examples:
      pabal chat users
      pabal chat users --db postgresql://db/chat --json
    """
    with _opened(root, db) as ledger:
        found = _pages(ledger.users, lambda user: str(user.email))
        _show(
            as_json,
            ["EMAIL", "NAME", "ROOMS", "SINCE"],
            "  r ",
            (
                {
                    "email": user.email,
                    "name": user.name,
                    "rooms": user.rooms,
                    "createdAt": iso_stamp(user.created_at.timestamp()),
                    "id": user.id,
                }
                for user in found
            ),
        )


@click.command("rooms")
@_place_options
def rooms(root: Path, db: str | None, as_json: bool) -> None:
    """List the rooms of a chat.

    \b
    Examples:
      pabal chat rooms
      pabal chat rooms --json
    """
    with _opened(root, db) as ledger:
        found = _pages(ledger.rooms, lambda room: str(room.id))
        _show(
            as_json,
            ["ROOM", "NAME", "OPEN", "MEMBERS", "MESSAGES", "LAST"],
            "   rr ",
            (
                {
                    "id": room.id,
                    "name": room.name,
                    "open": room.open,
                    "members": room.members,
                    "lastSequence": room.last_sequence,
                    "lastMessageAt": room.last_message_at and iso_stamp(room.last_message_at.timestamp()),
                }
                for room in found
            ),
        )


@click.command("invite")
@click.argument("room")
@click.option("--address", metavar="URL", help="The address of the page. By default that of the folder.")
@click.option(
    "--secret-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help=f"What signs tokens. By default that of the folder, else {SECRET}.",
)
@_place_options
def invite(room: str, address: str | None, secret_file: Path | None, root: Path, db: str | None, as_json: bool) -> None:
    """Make an invitation to ROOM, in the name of its owner.

    \b
    Examples:
      pabal chat invite 7d444840-9dc0-41d1-b245-5ffdce74fad2
    """
    with _operator(root, db) as operator:
        from pabal.apps.chat.gateway.auth import Tokens
        from pabal.apps.chat.up import ChatFolder

        place = ChatFolder(root)
        key = read_key(secret_file or (place.secret if db is None else None))
        made = operator.invite(room, Tokens(key, SystemClock()))
        if address is None:
            address = place.address.read_text() if db is None and place.address.is_file() else ""
        link = f"{address.rstrip('/')}/#join={made.room_id}.{made.token}"
        ends = iso_stamp(made.expires_at)
    if as_json:
        click.echo(json_text({"room": made.room_id, "invitation": made.token, "link": link, "expiresAt": ends}))
    else:
        click.echo(f"{link}\nvalid until {ends}")


@click.command("reset-password")
@click.argument("email")
@click.option(
    "--topics",
    metavar="URL",
    envvar="PABAL_CHAT_TOPICS",
    help="The topics of a chat at scale, to end the user's sessions at once.",
)
@_place_options
def reset_password(email: str, topics: str | None, root: Path, db: str | None, as_json: bool) -> None:
    """Give a user a new password, and print it.

    All sessions of the user end, and their sockets are disconnected: at once, or without --topics within half a minute.

    \b
    Examples:
      pabal chat reset-password ann@example.org
    """
    with _operator(root, db) as operator:
        from pabal.apps.chat.up import ChatFolder

        password = operator.reset_password(email, ChatFolder(root).topics if db is None else topics)
    click.echo(json_text({"email": email, "password": password}) if as_json else f"new password: {password}")


@click.command("registration")
@click.argument("state", required=False, type=click.Choice(["open", "closed"]))
@_place_options
def registration(state: str | None, root: Path, db: str | None, as_json: bool) -> None:
    """Show or set whether new users may register.

    \b
    Examples:
      pabal chat registration
      pabal chat registration closed
    """
    if state is not None:
        with _operator(root, db) as operator:
            operator.set_registration(state == "open")
    with _opened(root, db) as ledger:
        found = "open" if ledger.is_registration_open() else "closed"
    click.echo(json_text({"registration": found}) if as_json else f"registration is {found}")


@click.command("retention")
@click.option("--older-than", type=lasting, required=True, metavar="TIME", help="The age from which messages are old.")
@click.option("--delete", is_flag=True, help="Delete them. Without this it only counts.")
@click.option(
    "--images",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The folder of the images. By default that of the folder; with --db none are deleted without it.",
)
@_place_options
def retention(older_than: float, delete: bool, images: Path | None, root: Path, db: str | None, as_json: bool) -> None:
    """Count or delete old messages and unused images.

    The sequences of a room go on as they were. Run it from a timer.

    \b
    Examples:
      pabal chat retention --older-than 365d
      pabal chat retention --older-than 365d --delete
    """
    with _operator(root, db) as operator:
        from pabal.apps.chat.up import ChatFolder

        folder = images or (ChatFolder(root).images if db is None else None)
        found = operator.retain(
            time.time() - older_than,
            folder,
            delete=delete,
            progress=lambda name, count: None if as_json else click.echo(f"{clean(name)}: {count}", err=True),
        )
    if as_json:
        click.echo(json_text(found._asdict()))
    else:
        word = "deleted" if delete else "old (nothing was deleted: give --delete)"
        click.echo(f"{found.messages} messages in {found.rooms} rooms and {found.images} images {word}")


@click.command("audit")
@click.option("--count", type=click.IntRange(1, 100_000), default=50, metavar="N", help="The newest N. By default 50.")
@_place_options
def audit(count: int, root: Path, db: str | None, as_json: bool) -> None:
    """Show what operators did: when, who, what.

    \b
    Examples:
      pabal chat audit --count 10
    """
    with _opened(root, db) as ledger:
        lines = (
            {"at": iso_stamp(line.at.timestamp()), "actor": line.actor, "act": line.act, "target": line.target}
            | {"detail": line.detail}
            for line in ledger.audit_lines(count)
        )
        _show(as_json, ["AT", "WHO", "ACT", "TARGET", "DETAIL"], "", lines)


OPERATORS = (users, rooms, invite, reset_password, registration, retention, audit)
