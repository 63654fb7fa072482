"""A process that has everything imported and forks a child for each order, so that a thousand kills take seconds.

Orders and answers are lines: {"store", "operation", "place", "history"} in; "<pid>" out when the child stands ready,
"go" in to let it work, "<status>" out when it has ended. The operation `open` opens the store only after "go".
The zygote of `commands` takes {"argv", "place"} instead, and its child runs that command of `pabal`.
"""

import ctypes
import importlib
import json
import os
import pkgutil
import sys
import tempfile
import traceback
from pathlib import Path

from pabal.cli.main import cli
from pabal.errors import StoreError
from tests.crash.operations import BROKEN, DELETE, OPERATIONS, Desk

_PR_SET_PTRACER, _ANY = 0x59616D61, ctypes.c_ulong(-1)
# How a child ends: all went well, it was told of a fault, or it met an exception that no store may raise.
WELL, TOLD, WRONG = 0, 2, 3


def read_line() -> str:
    """Read a line without reading ahead: the next one may be for the child."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(0)
        line += byte
    return line.decode().strip()


def say(text: object) -> None:
    os.write(1, f"{text}\n".encode())


def work(order: dict[str, str]) -> None:
    """Do one order from end to end, in the child."""
    # Where only a parent may trace, whoever wants to trace this child may.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)
    if "argv" in order:
        os.chdir(order["place"])
        say(os.getpid())
        read_line()
        os.dup2(2, 1)
        os._exit(run(*order["argv"]))
    desk = Desk(order["store"], Path(order["place"]), Path(order["history"]))
    operation = (OPERATIONS | BROKEN | DELETE)["recover" if order["operation"] == "open" else order["operation"]]
    recorder = None if order["operation"] == "open" else desk.open()
    leases = operation.before(recorder) if recorder else []
    say(os.getpid())
    read_line()
    try:
        operation.act(recorder or desk.open(), leases)
    except StoreError:
        os._exit(TOLD)
    except BaseException:
        Path(order["history"]).with_suffix(".wrong").write_text(traceback.format_exc())
        os._exit(WRONG)
    os._exit(WELL)


def run(*argv: str) -> int:
    """Run a command in this process; return its exit code."""
    try:
        cli(list(argv), prog_name="pabal")
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else 1
    return 0


def warm_up(store: str) -> None:
    """Use every part once, so that no child has anything left to import."""
    if store == "commands":
        import_all("pabal.stores", "pabal.topic_stores.sqlite")
        return
    with tempfile.TemporaryDirectory() as folder:
        for number, operation in enumerate(OPERATIONS.values()):
            place = Path(folder) / str(number)
            place.mkdir()
            recorder = Desk(store, place, Path(folder) / "warm-up.jsonl").open()
            operation.act(recorder, operation.before(recorder))
            recorder.store.close()


def import_all(*packages: str) -> None:
    for package in packages:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)


def main() -> None:
    warm_up(sys.argv[1])
    say("ready")
    while True:
        order = json.loads(read_line())
        child = os.fork()
        if child == 0:
            work(order)
        _, status = os.waitpid(child, 0)
        say(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
