"""exec: runs the agent's command for a message; the path and the rest in variables, the message as JSON on stdin.

Exit status 0 is done, 75 (EX_TEMPFAIL) tries again, 65 (EX_DATAERR) buries it, any other has failed. What the command
prints goes to the agent's log. The command dies with the monitor.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from pabal import jsontext
from pabal.codecs.mime import fields
from pabal.codecs.mime.addresses import named
from pabal.codecs.mime.codec import priority_text
from pabal.errors import WakeFailed
from pabal.ignite.wakes import Ending, Surroundings, Turn
from pabal.jsontext import Json
from pabal.runtime.process import Child, Command

_STATUS = {0: Ending("done"), 75: Ending("retry", "exit status 75"), 65: Ending("bury", "exit status 65")}
_INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "TERM")


class ExecWake:
    def __init__(self, place: Surroundings) -> None:
        self._place = place
        self._children: dict[Turn, Child] = {}

    def wake(self, turn: Turn) -> None:
        command = command_of(self._place, turn.about.command, turn.about.variables, variables_of(self._place, turn))
        stdin = os.memfd_create("message", os.MFD_CLOEXEC)
        try:
            os.write(stdin, jsontext.encode(document_of(turn)))
            os.lseek(stdin, 0, os.SEEK_SET)
            with open(self._place.root / "logs" / f"{turn.agent}.log", "ab", buffering=0) as log:
                self._children[turn] = Child(command, stdin=stdin, stdout=log, stderr=log)
        except OSError as exc:
            raise WakeFailed(f"cannot run {command.argv[0]}: {exc.strerror or exc}") from exc
        finally:
            os.close(stdin)

    def alive(self, turn: Turn) -> bool:
        child = self._children.get(turn)
        return child is not None and child.status() is None

    def descriptor(self, turn: Turn) -> int:
        return self._children[turn].fd

    def ending(self, turn: Turn) -> Ending | None:
        child = self._children.get(turn)
        if child is None:
            return Ending("failed", "its command is gone")
        status = child.status()
        if status is None:
            return None
        told = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return _STATUS.get(status) or Ending("failed", told)

    def stop(self, turn: Turn) -> None:
        child = self._children.pop(turn, None)
        if child is not None:
            child.stop(grace=1.0)
            child.close()


def command_of(
    place: Surroundings, argv: tuple[str, ...], inherited: tuple[str, ...], variables: Mapping[str, str]
) -> Command:
    """Return what to run: the program looked up as a shell would, with only the variables that are named."""
    given = {name: place.variables[name] for name in (*_INHERITED, *inherited) if name in place.variables}
    if not argv:
        raise WakeFailed("the team file names no command for this agent")
    program = argv[0]
    found = str(place.folder / program) if "/" in program else shutil.which(program, path=given.get("PATH"))
    if found is None:
        raise WakeFailed(f"no program {program!r:.80} in PATH")
    return Command(argv=(os.path.abspath(found), *argv[1:]), cwd=place.folder, env={**given, **variables})


def variables_of(place: Surroundings, turn: Turn) -> dict[str, str]:
    return {
        "IGNITE_ROOT": str(place.root),
        "IGNITE_AGENT": turn.agent,
        "IGNITE_MESSAGE": turn.path,
        "IGNITE_MESSAGE_ID": turn.message.id,
        "IGNITE_RECEIPT": str(turn.receipt),
        "IGNITE_TYPE": turn.message.type,
        "IGNITE_ATTEMPT": str(turn.attempt),
    }


def document_of(turn: Turn) -> dict[str, Json]:
    """Return the message as the JSON that commands read."""
    message = turn.message
    recipients = named(message)
    return {
        "id": message.id,
        "agent": turn.agent,
        "path": turn.path,
        "receipt": str(turn.receipt),
        "attempt": turn.attempt,
        "type": message.type,
        "from": message.sender,
        "to": list(recipients.to or (turn.agent,)),
        "cc": list(recipients.cc),
        "priority": priority_text(message.priority),
        "thread_id": message.thread_id,
        "in_reply_to": message.headers.get(fields.IN_REPLY_TO, ""),
        "repository": message.headers.get(fields.REPOSITORY, ""),
        "issue": message.headers.get(fields.ISSUE, ""),
        "created_at": message.created_at,
        "body": message.body if not isinstance(message.body, bytes) else None,
    }
