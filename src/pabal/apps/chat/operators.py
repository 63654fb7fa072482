"""What the operator of a chat does: passwords, invitations, registration, retention. Each act is noted in the audit.

A new password ends sessions. Gateways hear of it through the topics, or ask the ledger within half a minute.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pabal.apps.chat.errors import TRANSIENT, RoomUnknown, UserUnknown
from pabal.apps.chat.events import PRESENCE, as_client
from pabal.apps.chat.gateway.auth import Tokens, password_hash
from pabal.apps.chat.gateway.images import old_images, remove_image
from pabal.apps.chat.gateway.presence import Ended, record_of
from pabal.apps.chat.ledger import Ledger
from pabal.connect import connect_topics

_PASSWORD_BYTES = 12
_PAGE = 500


class Invitation(NamedTuple):
    """An invitation that an operator made, in the name of the room's owner."""

    room_id: str
    token: str
    expires_at: float


class Retention(NamedTuple):
    """What retention deleted, or would delete."""

    rooms: int
    messages: int
    images: int
    deleted: bool


class Operator:
    """The acts of one person, who is named in the audit."""

    def __init__(self, ledger: Ledger, actor: str) -> None:
        self._ledger, self._actor = ledger, actor

    def reset_password(self, email: str, topics_url: str | None) -> str:
        """Give a user a new password, end all of the user's sessions and return the password.

        The end is announced in the topics, if they are given and answer.
        """
        user = self._ledger.user_by_email(email)
        if user is None:
            raise UserUnknown(f"no user has the email {email!r:.80}: see `pabal chat users`")
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        ended = self._ledger.set_password(user.id, password_hash(password))
        self._ledger.audit(self._actor, "reset-password", user.email, f"{len(ended)} sessions ended")
        if topics_url and ended:
            with suppress(*TRANSIENT), connect_topics(as_client(topics_url, "operator", self._actor)) as topics:
                topics.driver.append(PRESENCE, [record_of(Ended(ended))])
        return password

    def invite(self, room_id: str, tokens: Tokens) -> Invitation:
        """Make an invitation to a room, in the name of its owner."""
        room = self._ledger.room(room_id.lower())
        if room is None or room.owner_id is None:
            raise RoomUnknown(f"no room {room_id!r:.60} with members: see `pabal chat rooms`")
        id = self._ledger.invite(room.id, room.owner_id, lifetime=tokens.invitation_lifetime)
        token, ends = tokens.invitation(room.id, id)
        self._ledger.audit(self._actor, "invite", room.id, id)
        return Invitation(room.id, token, ends)

    def set_registration(self, open: bool) -> None:
        """Let new users register, or let nobody."""
        self._ledger.registration_open(open)
        self._ledger.audit(self._actor, "registration", "open" if open else "closed")

    def retain(
        self, before: float, images: Path | None, *, delete: bool, progress: Callable[[str, int], None]
    ) -> Retention:
        """Delete messages from before a time, and images from before it that no message shows; or only count them.

        `progress` is called with the name of a room and the number of its messages.
        """
        rooms = messages = 0
        after = ""
        orphans: set[str] = set()
        while page := self._ledger.rooms(after=after, limit=_PAGE):
            for room in page:
                found = self._ledger.expire(room.id, before, dry=not delete)
                orphans.update(found.images)
                if found.messages:
                    rooms, messages = rooms + 1, messages + found.messages
                    progress(room.name, found.messages)
            after = page[-1].id
        gone = 0
        for image_id in old_images(images, before) if images is not None else ():
            if not self._ledger.is_posted(image_id) or not delete and image_id in orphans:
                gone += 1
                if delete and images is not None:
                    remove_image(images, image_id)
        if delete:
            self._ledger.audit(self._actor, "retention", f"{messages} messages, {gone} images", f"before {before:.0f}")
        return Retention(rooms, messages, gone, delete)
