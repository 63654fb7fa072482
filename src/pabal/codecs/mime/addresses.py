"""Who a message is from and for, and what it is called: Message-ID, From, To and Cc.

Addresses are names of agents, nothing else: no display names, no angle brackets, so nothing about them is parsed.
A message for several is one message for each, all naming all of them, each with an id of its own.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pabal.errors import InvalidHeader, InvalidName
from pabal.message import Message, replace
from pabal.names import check_id, check_name

_DOMAIN = "ignite.local"
_NOBODY = "<>"  # as mail writes a message without a sender
_UNNAMED = "undisclosed-recipients:;"  # as mail writes a message that names no recipient
_message_id = re.compile(r"<[!-;=?-~]{1,990}>", re.ASCII).fullmatch


class Recipients(NamedTuple):
    to: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Everyone who gets it, each once, in the order named."""
        return tuple(dict.fromkeys((*self.to, *self.cc)))


def new_id(at: float) -> str:
    """Return an id of the form `<epoch>.<pid>.<hash>` that nobody has had before."""
    return f"{int(at)}.{os.getpid()}.{os.urandom(8).hex()}"


def message_id_of(id: str, headers: Mapping[str, str]) -> str:
    """Return the Message-ID of a message: of its id, or the one of another domain that its id was made from."""
    given = headers.get("Message-ID", "")
    return given if given and _message_id(given) and _id_from(given) == id else f"<{id}@{_DOMAIN}>"


def read_message_id(raw: str) -> tuple[str, str]:
    """Return the id of a message, and its Message-ID if the id does not say it."""
    if not _message_id(raw):
        raise InvalidHeader(f"Message-ID must be like <1770263544.12345.abcdef@{_DOMAIN}>; found {raw!r:.60}")
    local = raw[1:-1].removesuffix(f"@{_DOMAIN}")
    try:
        if len(local) < len(raw) - 2:
            return check_id(local), ""
    except InvalidName:
        pass  # legal in a mail; below it gets an id that is legal in a file name
    return _id_from(raw), raw


def _id_from(message_id: str) -> str:
    return f"mid-{hashlib.sha256(message_id.encode()).hexdigest()[:32]}"


def sender_text(sender: str) -> str:
    return sender or _NOBODY


def read_sender(raw: str) -> str:
    return "" if raw == _NOBODY else check_name(raw, "sender")


def names_text(names: Sequence[str]) -> str:
    """Return agents as To and Cc list them."""
    return ", ".join(names) or _UNNAMED


def read_names(raw: str) -> tuple[str, ...]:
    """Return the agents that To or Cc lists."""
    if not raw or raw == _UNNAMED:
        return ()
    return tuple(check_name(name.strip(), "agent") for name in raw.split(","))


def named(message: Message) -> Recipients:
    """Return the recipients that a message names itself, which it does only if they are several."""
    headers = message.headers
    try:
        found = Recipients(read_names(headers.get("To", "")), read_names(headers.get("Cc", "")))
    except InvalidName:
        return Recipients()
    says = {name: names_text(names) for name, names in zip(("To", "Cc"), found, strict=True) if names}
    listed = {name: headers[name] for name in ("To", "Cc") if name in headers}
    return found if found.to and len((*found.to, *found.cc)) > 1 and says == listed else Recipients()


def address(message: Message, recipients: Recipients) -> Message:
    """Return the message naming its recipients, if they are several; one alone is the queue it lies in."""
    for name in recipients.all:
        check_name(name, "agent")
    if not recipients.to:
        raise InvalidHeader("To must name at least one agent")
    headers = {name: value for name, value in message.headers.items() if name not in ("To", "Cc")}
    if len((*recipients.to, *recipients.cc)) > 1:
        headers |= {"To": names_text(recipients.to)}
        headers |= {"Cc": names_text(recipients.cc)} if recipients.cc else {}
    return replace(message, headers=headers)


def split(message: Message, recipients: Recipients) -> list[tuple[str, Message]]:
    """Return one message for each recipient, with whom it is for.

    The first keeps the id and the others are numbered after it, so that sending them all again repeats nothing.
    """
    addressed = address(message, recipients)
    return [
        (name, addressed if number == 1 else replace(addressed, id=check_id(f"{message.id}-{number}")))
        for number, name in enumerate(recipients.all, 1)
    ]
