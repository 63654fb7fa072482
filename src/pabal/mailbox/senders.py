"""Whose a request file is: its owner's, whatever the file says, where each client is a user of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pabal.errors import SenderMismatch
from pabal.mailbox.protocol import Batch, Problem


class Senders:
    """`clients` is who has which uid; None if all are the manager's own user."""

    def __init__(self, clients: Mapping[str, int] | None) -> None:
        self._clients = clients
        self.owners = frozenset({os.geteuid(), *(clients or {}).values()})  # who may own a request file

    def client_of(self, owner: int) -> str:
        """Name the client that is this user; empty if none is, or all may be."""
        return next((name for name, uid in (self._clients or {}).items() if uid == owner), "")

    def checked(self, batch: Batch, owner: int) -> Batch:
        """Return the batch as one of the file's owner, who is answered and may speak for nobody else."""
        if self._clients is None or self._clients.get(batch.client, os.geteuid()) == owner:
            return batch
        mismatch = SenderMismatch(f"a file of uid {owner} cannot speak for client {batch.client!r:.80}")
        client = self.client_of(owner)
        return Batch(client, [Problem(each.id, client, mismatch) for each in batch.requests], batch.many)
