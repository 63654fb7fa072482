"""Sender, recipients and id of a message: Message-ID, From, To and Cc.

Addresses are plain names of agents, without display names or angle brackets, so nothing is parsed. A name in another
script stands in the file as it is written, and in the message in ASCII. A message for several recipients becomes one
message for each; all name all recipients, and each has its own id.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pabal.codecs.mime.fields import DELIVERED_TO
from pabal.errors import InvalidHeader, InvalidName
from pabal.message import Message, replace
from pabal.names import ascii_name, check_id, check_name, shown_name

_DOMAIN = "ignite.local"
_NOBODY = "<>"  # as mail writes a message without a sender
_UNNAMED = "undisclosed-recipients:;"  # as mail writes a message that names no recipient
_message_id = re.compile(r"<[!-;=?-~]{1,990}>", re.ASCII).fullmatch


class Recipients(NamedTuple):
    to: tuple[str, ...] = ()
    cc: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """All recipients, each once, in the order named."""
        return tuple(dict.fromkeys((*self.to, *self.cc)))


def new_id(at: float) -> str:
    """Return a new id of the form `<epoch>.<pid>.<hash>`."""
    return f"{int(at)}.{os.getpid()}.{os.urandom(8).hex()}"


def fixed_id(key: str) -> str:
    """Return an id of the same form that is made from a key, so that what is sent again is sent once."""
    return f"0.0.{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def message_id_of(id: str, headers: Mapping[str, str]) -> str:
    """Return the Message-ID of a message: made from its id, or the foreign one from which its id was made."""
    given = headers.get("Message-ID", "")
    return given if given and _message_id(given) and _id_from(given) == id else f"<{id}@{_DOMAIN}>"


def read_message_id(raw: str) -> tuple[str, str]:
    """Return the id of a message, and its Message-ID if it cannot be made from the id."""
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
    """Return a sender as From shows it."""
    return shown_name(sender) or _NOBODY


def shown_text(names: Sequence[str]) -> str:
    """Return agents as To and Cc of a file show them."""
    return names_text([shown_name(name) for name in names])


def read_sender(raw: str) -> str:
    return "" if raw == _NOBODY else check_name(ascii_name(raw), "sender")


def names_text(names: Sequence[str]) -> str:
    """Return agents as To and Cc of a message list them."""
    return ", ".join(names) or _UNNAMED


def read_names(raw: str) -> tuple[str, ...]:
    """Return the agents that To or Cc lists."""
    if not raw or raw == _UNNAMED:
        return ()
    return tuple(check_name(ascii_name(name.strip()), "agent") for name in raw.split(","))


def named(message: Message) -> Recipients:
    """Return the recipients that a message names; it names them only if there are several."""
    headers = message.headers
    try:
        found = Recipients(read_names(headers.get("To", "")), read_names(headers.get("Cc", "")))
    except InvalidName:
        return Recipients()
    says = {name: names_text(names) for name, names in zip(("To", "Cc"), found, strict=True) if names}
    listed = {name: headers[name] for name in ("To", "Cc") if name in headers}
    return found if found.to and len((*found.to, *found.cc)) > 1 and says == listed else Recipients()


def address(message: Message, recipients: Recipients) -> Message:
    """Return the message with its recipients, if there are several; a single one is the queue of the message."""
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
    """Return one message for each recipient, with the name of the recipient.

    The first keeps the id and the others are numbered after it, so that sending them all again repeats nothing. If
    there are several, each says in Delivered-To whose copy it is. A message that names several recipients and does not
    say so was never split.
    """
    addressed = address(message, recipients)
    if len(recipients.all) == 1:
        return [(recipients.all[0], addressed)]
    return [
        (name, copy_for(addressed, name, message.id if number == 1 else f"{message.id}-{number}"))
        for number, name in enumerate(recipients.all, 1)
    ]


def copy_for(message: Message, name: str, id: str) -> Message:
    """Return the copy of one recipient, under an id of its own."""
    return replace(message, id=check_id(id), headers={**message.headers, DELIVERED_TO: name})


def is_split(message: Message) -> bool:
    """Return whether this is the copy of one recipient, or a message that names only one."""
    return DELIVERED_TO in message.headers or not named(message).to
