"""`pabal mime`: build, read and change message files, with the commands of the original tool."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import click

from pabal import durable
from pabal.cli.session import help_if_alone
from pabal.cli.text import json_lines
from pabal.cli.values import pair, priority, unique
from pabal.errors import MessageUnknown, TooLarge
from pabal.ids import new_token
from pabal.policy.policy import LARGEST_MAX_BYTES

# The codec is imported when a command needs it: the other commands start faster without YAML.


class Spreading(click.Command):
    """A command whose repeatable options also take several values at once: `--to leader strategist`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        many = {
            name for param in self.params if isinstance(param, click.Option) and param.multiple for name in param.opts
        }
        spread: list[str] = []
        option = ""
        for arg in args:
            if arg.startswith("-") and arg != "-":
                option = arg if arg in many else ""
                spread += [] if option else [arg]
            else:
                spread += [option, arg] if option else [arg]
        return super().parse_args(ctx, spread)


@click.group("mime", invoke_without_command=True)
@click.pass_context
def mime(ctx: click.Context) -> None:
    """Build, read and change message files of IGNITE."""
    help_if_alone(ctx)


file_argument = click.argument("file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")


@mime.command("build", cls=Spreading)
@click.option("--from", "sender", required=True, metavar="AGENT", help="The sender.")
@click.option("--to", multiple=True, required=True, metavar="AGENT...", help="The recipients; several may follow.")
@click.option("--cc", multiple=True, metavar="AGENT...", help="The recipients of copies; several may follow.")
@click.option("--type", "type", required=True, metavar="TYPE", help="What kind of message it is.")
@click.option("--priority", type=priority, default="normal", metavar="LEVEL", help="critical, high, normal or low.")
@click.option("--thread-id", default="", metavar="ID", help="The conversation it belongs to.")
@click.option("--in-reply-to", default="", metavar="ID", help="The Message-ID that it answers.")
@click.option("--repo", "repository", default="", metavar="OWNER/NAME", help="The repository it is about.")
@click.option("--issue", default="", metavar="NUMBER", help="The issue it is about.")
@click.option("--status", default="", metavar="WORD", help="The status it begins with; none by default.")
@click.option("--body", default="", metavar="YAML", help="The body.")
@click.option("--body-file", metavar="PATH", help="Read the body from a file, or from stdin if it is -.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH", help="Write it here.")
def build(
    to: tuple[str, ...],
    cc: tuple[str, ...],
    body: str,
    body_file: str | None,
    output: Path | None,
    **parts: Any,
) -> None:
    """Build a message file, on stdout or in the file of --output.

    The body is kept as it is given, and must be YAML. A file is written whole or not at all, readable for its owner
    only.

    \b
    Examples:
      pabal mime build --from user --to leader --type user_goal \\
          --body 'goal: "write a README"' -o goal.mime
      pabal mime build --from leader --to architect evaluator --type user_goal \\
          --body-file - < body.yaml
    """
    from pabal.codecs.mime import document
    from pabal.codecs.mime.addresses import Recipients, new_id

    now = time.time()
    data = document.build(
        document.Parts(
            id=new_id(now),
            at=now,
            recipients=Recipients(to, cc),
            body=os.fsencode(body) if body_file is None else _read(body_file),
            **parts,
        )
    )
    if output is None:
        click.echo(data, nl=False)
        return
    with durable.translated(f"writing {output}"):
        durable.replace_whole(output, data)


@mime.command("parse")
@file_argument
def parse(file: Path) -> None:
    """Print a message file as JSON.

    Its headers by their short names, every further X-IGNITE-* likewise in lower case with _, and the body as text.

    \b
    Examples:
      pabal mime parse goal.mime
      pabal mime parse goal.mime | jq -r .type
    """
    from pabal.codecs.mime import document

    click.echo(json_lines(document.as_json(_read(str(file)))))


@mime.command("extract-body")
@file_argument
def extract_body(file: Path) -> None:
    """Print the body of a message file, byte for byte.

    \b
    Example:
      pabal mime extract-body goal.mime
    """
    from pabal.codecs.mime import document

    click.echo(document.body_of(_read(str(file))), nl=False)


@mime.command("update-status", cls=Spreading)
@file_argument
@click.argument("status", metavar="STATUS")
@click.option("--processed-at", metavar="TIME", help="Set X-IGNITE-Processed-At as well.")
@click.option("--extra", type=pair, multiple=True, metavar="NAME=VALUE...", help="Set these headers too.")
def update_status(file: Path, status: str, processed_at: str | None, extra: tuple[tuple[str, str], ...]) -> None:
    """Set the status of a message file and leave its body alone.

    \b
    Examples:
      pabal mime update-status goal.mime delivered
      pabal mime update-status goal.mime retrying \\
          --extra X-IGNITE-Retry-Count=1
    """
    from pabal.codecs.mime import fields

    processed = {} if processed_at is None else {fields.PROCESSED_AT: processed_at}
    _change(file, {fields.STATUS: status, **processed, **unique(extra, "--extra")})


@mime.command("update-header")
@file_argument
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="VALUE")
def update_header(file: Path, name: str, value: str) -> None:
    """Set one header of a message file and leave its body alone.

    \b
    Example:
      pabal mime update-header goal.mime X-IGNITE-Retry-Count 3
    """
    _change(file, {name: value})


@mime.command("remove-header")
@file_argument
@click.argument("name", metavar="NAME")
def remove_header(file: Path, name: str) -> None:
    """Take one header out of a message file, if it is there.

    \b
    Example:
      pabal mime remove-header goal.mime X-IGNITE-Error-Reason
    """
    _change(file, {name: None})


def _read(path: str) -> bytes:
    """Read a file, or stdin, that is not larger than any message may be."""
    if path == "-":
        return _whole(sys.stdin.buffer)
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            if stat.S_ISREG(about.st_mode) and about.st_size > LARGEST_MAX_BYTES:
                raise TooLarge(f"a message has at most {LARGEST_MAX_BYTES} bytes; {path} has {about.st_size}")
            return _whole(file)
    except OSError as exc:
        raise click.FileError(path, exc.strerror) from exc


def _whole(file: IO[bytes]) -> bytes:
    data = file.read(LARGEST_MAX_BYTES + 1)
    if len(data) > LARGEST_MAX_BYTES:
        raise TooLarge(f"a message has at most {LARGEST_MAX_BYTES} bytes; there are more")
    return data


def _change(path: Path, changes: Mapping[str, str | None]) -> None:
    """Change headers in one step. Other processes that change the same file wait; a removed file is not made again."""
    from pabal.codecs.mime.fields import edited
    from pabal.filesystem import exchange

    with _folder_lock(path.parent):
        data = edited(_read(str(path)), changes)
        draft = path.with_name(f".{path.name[:200]}.{new_token()}.tmp")
        with durable.translated(f"writing {path}"):
            fd = durable.write_new(draft, data)
            try:
                _copy_owner(fd, os.stat(path))
                durable.sync(fd)
                exchange(str(draft), str(path))
            except FileNotFoundError as exc:
                raise MessageUnknown(f"{path} was removed meanwhile; nothing was written") from exc
            finally:
                os.close(fd)
                with suppress(FileNotFoundError):
                    draft.unlink()
            durable.sync_dir(path.parent)


def _copy_owner(fd: int, about: os.stat_result) -> None:
    """Give a file the owner and the mode of another, so that the same users can read it."""
    if (about.st_uid, about.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.fchown(fd, about.st_uid, about.st_gid)
    os.fchmod(fd, stat.S_IMODE(about.st_mode))


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise click.FileError(str(folder), exc.strerror) from exc
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
