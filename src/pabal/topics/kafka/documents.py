"""The documents that topics carry, kept in a topic of their own: the log decides who was first.

What `configure` keeps under the name of a topic replaces all that was said of it before. What `create` proposes counts
only where nothing else was said before; each proposal has a key of its own, so that compaction leaves them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pabal import jsontext
from pabal.ids import new_token
from pabal.topics.kafka.looking import Looking

SETTINGS_TOPIC = "pabal.settings"  # compacted
_PROPOSAL = "~"  # in no topic's name
_PAGE = 1000


class _Said(NamedTuple):
    """What was said of a topic, in its turn."""

    proposed: bool
    value: bytes


def proposal_key(topic: str) -> str:
    """Return the key of what is proposed for a topic."""
    return f"{topic}{_PROPOSAL}{new_token()}"


class Documents:
    """All documents, read again only when there are new ones: to ask for that costs a fiftieth of reading."""

    def __init__(self, looking: Looking) -> None:
        self._looking = looking
        self._known: tuple[int, dict[str, list[_Said]]] = (0, {})  # to which offset, replaced whole: threads share it

    def of(self, topic: str) -> Mapping[str, Any]:
        """Return what a topic carries, by all that was kept for it."""
        [(_, end)] = self._looking.bounds(SETTINGS_TOPIC, 1)
        read_to, said = self._known
        if end != read_to:
            said = self._read()
            self._known = (end, said)
        found: dict[str, Any] = {}
        for proposed, value in said.get(topic, ()):
            told = jsontext.decode(value)
            found = {**told, **found} if proposed else told
        return found

    def _read(self) -> dict[str, list[_Said]]:
        said: dict[str, list[_Said]] = {}
        offset = 0
        while records := self._looking.page(SETTINGS_TOPIC, 0, offset, _PAGE):
            for record in records:
                topic, proposal, _ = record.key.partition(_PROPOSAL)
                said.setdefault(topic, []).append(_Said(bool(proposal), record.value))
            offset = records[-1].offset + 1
        return said
