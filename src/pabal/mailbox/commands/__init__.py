"""The commands of a mailbox by name: those of the documented protocol and those of the library."""

from __future__ import annotations

from collections.abc import Mapping

from pabal.mailbox.commands.context import Command
from pabal.mailbox.commands.dlq import DLQ_COMMANDS
from pabal.mailbox.commands.messages import MESSAGE_COMMANDS
from pabal.mailbox.commands.queues import LOOK_COMMANDS
from pabal.mailbox.commands.schedules import SCHEDULE_COMMANDS
from pabal.mailbox.commands.status import STATUS_COMMANDS
from pabal.mailbox.commands.store import STORE_COMMANDS

__all__ = ["COMMANDS", "STORE_COMMANDS"]

COMMANDS: Mapping[str, Command] = {
    **MESSAGE_COMMANDS,
    **SCHEDULE_COMMANDS,
    **STATUS_COMMANDS,
    **LOOK_COMMANDS,
    **DLQ_COMMANDS,
}
