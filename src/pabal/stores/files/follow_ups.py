"""Settle with follow-ups as one step: a folder `.settling/<id>~<token>~<tag>/` with the outputs and a plan.

The commit point is the rename of the inflight file into the folder. A folder that holds its input is finished by
whoever meets it, and two finishers are harmless; one without promises nothing and is removed when it is old.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from pabal import durable, jsontext
from pabal.store import Outcome, Receipt, Settlement, State
from pabal.stores.files import dedup
from pabal.stores.files.calls import rename_new
from pabal.stores.files.dedup import First
from pabal.stores.files.names import tokened
from pabal.stores.files.parcels import Parcel, discard, stage
from pabal.stores.files.publishing import made_here, publish
from pabal.stores.files.root import Root
from pabal.stores.files.settling import Move, date, prepare, settled_before, tidy
from pabal.stores.files.spool import Spool

OLD_SECONDS = 60.0
PLAN, INPUT, _WHY = "plan.json", "input", "why"

Plan: TypeAlias = dict[str, Any]


def settle_with(root: Root, spool: Spool, settlement: Settlement, parcels: Sequence[Parcel]) -> Outcome:
    """Apply one verdict and publish what follows from it."""
    parcels = [parcel for parcel in parcels if made_here(root, parcel) is None]
    for _ in range(3):  # a lease that another process extends in between has another name
        move = prepare(root, spool, settlement, synced=True)
        if move is None:
            break
        folder = _stage(root, settlement, move, parcels)
        with spool:
            try:
                root.move(f"{spool.inflight}/{move.held.name}", f"{folder}/{INPUT}")
                committed = True
            except FileNotFoundError:
                committed = False
        if committed:
            root.spare(partial(finish, root, folder))
            tidy(root, spool, settlement, move, applied=True)
            return Outcome.APPLIED
        spool.held.pop((settlement.receipt.id, settlement.receipt.token), None)
        remove(folder)
    outcome = settled_before(root, spool, settlement)
    if outcome is Outcome.APPLIED:  # somebody's removal of the file was the ack
        publish(root, [parcel.draft for parcel in parcels])
    return outcome


def _stage(root: Root, settlement: Settlement, move: Move, parcels: Sequence[Parcel]) -> str:
    receipt = settlement.receipt
    folder = folder_of(root, receipt)
    root.spare(lambda: _write(root, folder, receipt.queue, move, parcels))
    return folder


def folder_of(root: Root, receipt: Receipt) -> str:
    """Name a new folder for one settlement."""
    return f"{root.settling}/{receipt.id}~{tokened(receipt.token)}~{dedup.new_tag()}"


def _write(root: Root, folder: str, queue: str, move: Move, parcels: Sequence[Parcel]) -> None:
    os.mkdir(folder, 0o700)
    try:
        _fill(root, folder, queue, move, parcels)
    except OSError:
        with suppress(FileNotFoundError):
            os.rename(f"{folder}/{_WHY}", move.draft)
        remove(folder)
        raise


def _fill(root: Root, folder: str, queue: str, move: Move, parcels: Sequence[Parcel]) -> None:
    for number, parcel in enumerate(parcels):
        parcel.path = f"{folder}/{number}~{parcel.final}"
    stage(parcels)
    if move.draft:
        os.rename(move.draft, f"{folder}/{_WHY}")
    durable.write_whole(f"{folder}/{PLAN}", jsontext.pretty(plan_of(queue, move, parcels)))
    durable.sync_dir(folder)
    now = root.clock.now()
    os.utime(folder, (now, now))
    durable.sync_dir(root.settling)


def plan_of(queue: str, move: Move, parcels: Sequence[Parcel]) -> Plan:
    """Say what is to be done once the folder holds its input."""
    return {
        "queue": queue,
        "id": move.id,
        "state": move.state,
        "name": move.name,
        "outputs": [_output(parcel) for parcel in parcels],
    }


def _output(parcel: Parcel) -> dict[str, Any]:
    return {
        "file": os.path.basename(parcel.path),
        "queue": parcel.spool.name,
        "first": parcel.as_first,
        "state": parcel.state,
        "records": [[os.path.basename(path), expires] for path, expires in parcel.records],
    }


def finish(root: Root, folder: str) -> bool:
    """Complete a folder that holds its input; False if it does not."""
    try:
        with open(f"{folder}/{PLAN}", "rb") as file:
            plan = jsontext.decode(file.read())
        if not os.path.lexists(f"{folder}/{INPUT}"):
            return False
        durable.sync_dir(folder)
    except (FileNotFoundError, ValueError):
        return False
    complete(root, [(folder, plan)])
    return True


def complete(root: Root, committed: Sequence[tuple[str, Plan]]) -> None:
    """Bring outputs and inputs of committed folders, themselves durable, to their places; flushes are shared."""
    outputs = [
        (folder, output) for folder, plan in committed for output in plan["outputs"] if _claim(root, folder, output)
    ]
    queues = {root.make(output["queue"]) for _, output in outputs}
    for spool in queues:
        spool.sync([spool.dedup])
    for folder, output in outputs:
        _move_output(root, folder, output)
    for directory in {root.make(output["queue"]).dirs[State(output["state"])] for _, output in outputs}:
        durable.sync_dir(directory)
    for directory in {directory for folder, plan in committed for directory in _move_input(root, folder, plan)}:
        durable.sync_dir(directory)
    for spool in {root.make(plan["queue"]) for _, plan in committed}:
        spool.ring()
    for folder, _ in committed:
        remove(folder)


def _claim(root: Root, folder: str, output: dict[str, Any]) -> bool:
    spool = root.make(output["queue"])
    records = [(f"{spool.dedup}/{name}", expires) for name, expires in output["records"]]
    if not records:
        return True
    with spool:
        first = dedup.claim(records, First(*output["first"]), root.now())
    if first is not None:
        discard([f"{folder}/{output['file']}"])
    return first is None


def _move_output(root: Root, folder: str, output: dict[str, Any]) -> None:
    spool, name = root.make(output["queue"]), output["file"].partition("~")[2]
    directory = spool.dirs[State(output["state"])]
    slot = root.names.parse(name)
    with spool:
        if slot is not None and slot.group:
            name = root.names.stamped(slot, spool.next_stamp(root.clock.now()))
        try:
            rename_new(f"{folder}/{output['file']}", f"{directory}/{name}")
        except FileExistsError:
            discard([f"{folder}/{output['file']}"])
        except FileNotFoundError:
            pass  # another finisher was here


def _move_input(root: Root, folder: str, plan: Plan) -> tuple[str, str]:
    """Bring the input to where its verdict takes it; return the directories that changed."""
    spool, state = root.make(plan["queue"]), State(plan["state"])
    why = f"{spool.dirs[state]}/{plan['name']}.why"
    if state in (State.READY, State.DELAYED):
        why = f"{spool.why}/{plan['id']}.why"
    with spool:
        if os.path.lexists(f"{folder}/{INPUT}"):  # else another finisher was here
            with suppress(FileNotFoundError):
                root.move(f"{folder}/{_WHY}", why)
            date(root, f"{folder}/{INPUT}")
            root.move(f"{folder}/{INPUT}", f"{spool.dirs[state]}/{plan['name']}")
    return spool.dirs[state], os.path.dirname(why)


def finish_all(root: Root) -> int:
    """Complete what is committed, whoever began it, and remove what is old and never was; return how many were done."""
    done = 0
    for name in os.listdir(root.settling):
        folder = f"{root.settling}/{name}"
        if root.spare(partial(finish, root, folder)):
            done += 1
        elif _is_old(root, folder):
            _give_up(root, folder)
    return done


def _is_old(root: Root, folder: str) -> bool:
    try:
        return root.clock.now() - os.stat(folder).st_mtime > OLD_SECONDS
    except FileNotFoundError:
        return False


def _give_up(root: Root, folder: str) -> None:
    """Remove a folder that was never committed; moved away first, so that its owner can no longer commit into it."""
    away = f"{root.settling}/.{dedup.new_tag()}"
    with suppress(OSError):
        os.rename(folder, away)
        if os.path.lexists(f"{away}/{INPUT}"):
            os.rename(away, folder)  # it was committed at this very moment
        else:
            remove(away)


def remove(folder: str) -> None:
    # Not shutil.rmtree: where an interrupt strikes it closes a descriptor twice, perhaps another's by then.
    with suppress(OSError):
        discard(f"{folder}/{name}" for name in os.listdir(folder))
        os.rmdir(folder)
