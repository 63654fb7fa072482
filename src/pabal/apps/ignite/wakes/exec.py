"""exec: runs the agent's command for a message, with the path in a variable and in place of `{path}`.

Exit status 0 means done, 75 (EX_TEMPFAIL) retry, 65 (EX_DATAERR) bury, any other failed. A model ends with 0 also when
it only asked for a permission, so with `done: explicit` status 0 is a failed attempt unless the command settled the
message itself. stdin is empty unless `stdin: true`, because models append it to their prompt. The output of the command
goes to the agent's log. The command dies with the monitor.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import NamedTuple

from pabal import jsontext
from pabal.apps.ignite.errors import WakeFailed
from pabal.apps.ignite.guide import CLAUDE_RULES
from pabal.apps.ignite.wakes import Ending, Turn, WakeContext
from pabal.codecs.mime import fields
from pabal.codecs.mime.addresses import named
from pabal.codecs.mime.codec import priority_text
from pabal.filesystem import private
from pabal.jsontext import Json
from pabal.runtime.process import Child, Command

_STATUS = {0: Ending("done"), 75: Ending("retry", "exit status 75"), 65: Ending("bury", "exit status 65")}
_INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "TERM")
_NOT_SETTLED = (
    "exit status 0, but neither `pabal ignite done` nor `fail` was called; `pabal ignite logs {agent}` shows why"
)
_PROMPT = (
    "You are the agent {agent} of a team. A message for you is in the file {path} : read it and do what it asks. "
    'When all of it is done, run `pabal ignite done {id}`, or `pabal ignite reply {id} "text"` to answer too. If you'
    ' cannot do it, run `pabal ignite fail {id} --reason "why"`. A message that you leave without one of them is given'
    " to you again."
)


class Preset(NamedTuple):
    """The command line of a model for one message, and the variables that the model needs."""

    command: tuple[str, ...]
    variables: tuple[str, ...]


# The prompt of claude follows -p at once: --allowedTools takes all plain arguments after it. The team file names
# commands, so that a model which reads text of strangers must not change it. codex exec never asks for
# an approval; its sandbox lets it write in the project, where the workspace is.
_PRESETS = {
    "claude": Preset(
        (
            *("claude", "-p", _PROMPT, "--permission-mode", "acceptEdits"),
            *("--disallowedTools", "Edit(.ignite/**)", "--allowedTools", *CLAUDE_RULES),
        ),
        (
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "ANTHROPIC_BASE_URL",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "CLAUDE_CONFIG_DIR",
        ),
    ),
    "codex": Preset(
        ("codex", "exec", "--sandbox", "workspace-write", "--skip-git-repo-check", _PROMPT),
        ("OPENAI_API_KEY", "CODEX_API_KEY", "CODEX_HOME"),
    ),
}


class ExecWake:
    def __init__(self, context: WakeContext) -> None:
        self._context = context
        self._children: dict[Turn, Child] = {}

    def wake(self, turn: Turn) -> None:
        argv, inherited = command_line(turn)
        command = command_of(self._context, argv, inherited, variables_of(self._context, turn))
        stdin = os.memfd_create("message", os.MFD_CLOEXEC)
        try:
            if turn.about.stdin:
                os.write(stdin, jsontext.encode(document_of(turn)))
                os.lseek(stdin, 0, os.SEEK_SET)
            with open(self._context.root / "logs" / f"{turn.agent}.log", "ab", buffering=0, opener=private) as log:
                self._children[turn] = Child(command, stdin=stdin, stdout=log, stderr=log)
        except OSError as exc:
            raise WakeFailed(f"cannot run {command.argv[0]}: {exc.strerror or exc}") from exc
        finally:
            os.close(stdin)

    def descriptor(self, turn: Turn) -> int:
        return self._children[turn].fd

    def ending(self, turn: Turn) -> Ending | None:
        child = self._children.get(turn)
        if child is None:
            return Ending("failed", "its command is gone")
        status = child.status()
        if status is None:
            return None
        if status == 0 and turn.about.explicit:
            return Ending("failed", _NOT_SETTLED.format(agent=turn.agent))
        reason = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return _STATUS.get(status) or Ending("failed", reason)

    def stop(self, turn: Turn) -> None:
        child = self._children.pop(turn, None)
        if child is not None:
            child.stop(grace=1.0)
            child.close()


def command_line(turn: Turn) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the arguments of the command for a message, and the variables that it inherits.

    `{path}`, `{id}` and `{agent}` are replaced. None of the three holds text that a sender has chosen freely.
    """
    about, variables = turn.about, turn.about.variables
    argv = about.command
    if about.preset:
        preset = _PRESETS[about.preset]
        argv, variables = (*preset.command, *about.arguments), (*preset.variables, *variables)
    return tuple(turn.filled_in(each) for each in argv), variables


def command_of(
    context: WakeContext, argv: tuple[str, ...], inherited: tuple[str, ...], variables: Mapping[str, str]
) -> Command:
    """Return the command: the program is looked up as a shell does, and it gets only the variables that are named."""
    given = {name: context.variables[name] for name in (*_INHERITED, *inherited) if name in context.variables}
    if not argv:
        raise WakeFailed("the team file names no command for this agent")
    program = argv[0]
    found = str(context.folder / program) if "/" in program else shutil.which(program, path=given.get("PATH"))
    if found is None:
        raise WakeFailed(f"no program {program!r:.80} in PATH")
    return Command(argv=(os.path.abspath(found), *argv[1:]), cwd=context.folder, env={**given, **variables})


def variables_of(context: WakeContext, turn: Turn) -> dict[str, str]:
    return {
        "IGNITE_ROOT": str(context.root),
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
