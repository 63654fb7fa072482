"""What a mailbox can be asked: the commands of the protocol and those of the library, each by its name."""

from __future__ import annotations

from collections.abc import Mapping

from pabal.mailbox.commands.command import Command
from pabal.mailbox.commands.consume import CONSUMING
from pabal.mailbox.commands.dlq import DLQ
from pabal.mailbox.commands.library import LIBRARY_COMMANDS
from pabal.mailbox.commands.look import LOOKING
from pabal.mailbox.commands.publish import PUBLISHING
from pabal.mailbox.commands.settle import SETTLING

__all__ = ["COMMANDS", "LIBRARY_COMMANDS"]

COMMANDS: Mapping[str, Command] = {**PUBLISHING, **CONSUMING, **SETTLING, **LOOKING, **DLQ}
