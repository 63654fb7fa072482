"""An I/O error, a full disk, too many open files at every system call: a named error, nothing acknowledged is lost."""

import random
from pathlib import Path

import pytest

from tests.crash.harness import SOAK, Point, Zygote, judge, scratch
from tests.crash.operations import OPERATIONS
from tests.crash.zygote import TOLD, WELL, WRONG

FEW = 40
# Calls that need no new space do not run out of it.
_NO_ROOM_NEEDED = {"unlink", "unlinkat", "rmdir", "utimensat", "utime", "sync_file_range"}

# What promises to survive a power cut must not be answered when a flush has failed.
DURABLE = {operation for operation in OPERATIONS if operation.startswith("publish")} | {"ack-durable", "ack-then"}


def errors(point: Point) -> list[str]:
    if point.call in ("flock", "fcntl"):
        # A lock on a local disk does no I/O; it can only be refused, and never be refused to be let go.
        return ["ENOLCK"] if "LOCK_EX" in point.told or "F_WRLCK" in point.told else []
    found = ["EIO"]
    if point.call == "openat":
        found.append("EMFILE")
    if point.call not in _NO_ROOM_NEEDED and not (point.call == "openat" and "O_CREAT" not in point.told):
        found.append("ENOSPC")
    return found


@pytest.mark.parametrize("operation", [*OPERATIONS, "open"])
def test_an_error_at_any_call_is_told_and_loses_nothing(zygote: Zygote, operation: str) -> None:
    # The history's own lines must come through, or there is nothing to judge by.
    points = [point for point in zygote.points(operation) if ".jsonl" not in point.told]
    cases = [(point, error) for point in points for error in errors(point)]
    seed = random.randrange(10**6)
    cases = cases if SOAK else some_of(cases, random.Random(seed))
    faults = []
    for point, error in cases:
        with scratch() as folder:
            status = zygote.inject(operation, Path(folder), point, f"error={error}")
            fault = fault_of(zygote.store, Path(folder), status)
        if status == WELL and error == "EIO" and operation in DURABLE and point.call in ("fsync", "fdatasync"):
            faults.append(f"{error} at {point.told}\nit was answered as if the flush had worked")
        if fault:
            faults.append(f"{error} at {point.told}\n{fault}")
    assert not faults, f"{len(faults)} of {len(cases)} (seed {seed}):\n" + "\n".join(faults)


def some_of(cases: list[tuple[Point, str]], chance: random.Random) -> list[tuple[Point, str]]:
    """Return one case of each call and error, and some others: all of them take minutes, and `make soak` runs them."""
    mixed = chance.sample(cases, len(cases))
    kinds = {(point.call, error): (point, error) for point, error in mixed}
    return [*kinds.values(), *(case for case in mixed if case not in kinds.values())][: max(len(kinds), FEW)]


def fault_of(store: str, folder: Path, status: int) -> str:
    """Say what is wrong with how a child met an error, and with what it left; nothing if all is well."""
    if status == WRONG:
        return (folder / "child.wrong").read_text()
    if status not in (WELL, TOLD):
        return f"it ended with {status}"
    try:
        harm = judge(store, folder).harm
    except Exception as exc:
        return f"{type(exc).__name__} when opened again: {exc}"
    return f"{harm}" if harm else ""
