"""Settle: apply verdicts, and publish the follow-ups of each in the same step. One settlement is a batch of one.

Without follow-ups a settlement is one rename out of `inflight`, after its reason has been put in place.

With follow-ups it has a folder (`settlement_folder`) with a plan, the reason and the follow-up messages, all of them
durable. The commit point is the rename of the inflight file into the folder. Every process that meets a folder with its
input finishes it, and two finishers do no harm. A folder without input promises nothing, and is removed when it is old.

If the plan is damaged, the verdict is not known any more: the follow-ups are published and the input is set aside as
corrupt. A file that the plan does not explain is set aside too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from pabal import durable, jsontext
from pabal.errors import DecodeError
from pabal.filesystem import UNREADABLE, close_all, open_into, remove, rename_new
from pabal.ids import is_ours, new_tag
from pabal.store import Dead, Done, Draft, Outcome, Retry, Settlement, State, Verdict
from pabal.stores.files import dedup
from pabal.stores.files.dedup import First
from pabal.stores.files.names import ceil_ms, digest, floor_ms
from pabal.stores.files.order import set_time
from pabal.stores.files.publish import (
    EncodedDraft,
    StagedFile,
    discard,
    encode,
    publish,
    published_before,
    stage,
    stamped,
    state_in,
)
from pabal.stores.files.queue_directory import LeasedFile, QueueDirectory
from pabal.stores.files.read import LiveMessages, find_leases, find_settled, locate, read_message, restate, set_aside
from pabal.stores.files.root import DAMAGED_QUEUE, Root, is_of_queue
from pabal.stores.files.settlement_folder import (
    INPUT,
    PLAN,
    WHY,
    Plan,
    is_committed,
    new_folder,
    output_name,
    outputs_in,
    parse_folder,
    plan_text,
    queues_by_hash,
    read_plan,
    remains,
    unexplained,
)

_LEFTOVER_SECONDS = 60.0  # from this age on a file or folder that belongs to nothing was left by a crash
_DAMAGED = "DamagedPlan: it was settled, but the verdict cannot be read any more; its follow-ups are published"
_UNEXPLAINED = "Unexplained: found in the folder of a settlement, whose plan does not name it"
_TRIES = 3  # another process may extend the lease meanwhile, which renames the file
_FOLDERS = 100  # folders that are written together, each with an open descriptor
_STATES: dict[type[Verdict], tuple[State, ...]] = {
    Done: (State.DONE,),
    Dead: (State.DEAD,),
    Retry: (State.READY, State.DELAYED),
}


class Case:
    """A settlement whose lease was found: its file, where the verdict moves it, and its follow-ups."""

    __slots__ = ("applied", "drafts", "folder", "leased", "name", "plan", "reason", "settlement", "state")

    def __init__(self, root: Root, settlement: Settlement, leased: LeasedFile) -> None:
        self.settlement, self.leased, self.applied = settlement, leased, False
        self.reason = ""  # where the reason was written; it is moved into place before the file
        self.folder = ""  # only with follow-ups
        self.drafts: list[EncodedDraft] = []
        self.plan: Plan = {}
        verdict, now = settlement.verdict, root.clock.now()
        if type(verdict) is Retry:
            due = ceil_ms(now + verdict.delay) if verdict.delay > 0 else floor_ms(now)
            name = leased.name
            if not verdict.counted:
                name = root.names.leased(leased.slot, leased.attempt - 1, name.partition("~l")[2])
                name = name.removesuffix(leased.slot.extension) if leased.slot.extension else name
            self.name = root.names.waiting(name, due)
            self.state = State.DELAYED if verdict.delay > 0 else State.READY
        else:
            self.name = root.names.settled(leased.name, floor_ms(now))
            self.state = State.DONE if type(verdict) is Done else State.DEAD

    def follow_up(self, root: Root, drafts: list[EncodedDraft]) -> None:
        """Publish these drafts with the settlement, through a folder with a plan of the remaining steps."""
        receipt = self.settlement.receipt
        self.folder = new_folder(root, receipt)
        self.drafts = drafts
        self.plan = {
            "queue": receipt.queue,
            "id": receipt.id,
            "state": self.state,
            "name": self.name,
            "outputs": [
                {
                    "file": output_name(number, draft.queue.name, draft.final),
                    "queue": draft.queue.name,
                    "first": draft.as_first,
                    "state": draft.state,
                    "records": [[os.path.basename(path), expires] for path, expires in draft.records],
                    **({} if draft.failure is None else {"why": draft.failure}),
                }
                for number, draft in enumerate(self.drafts)
            ],
        }


def settle(root: Root, settlements: Sequence[Settlement], *, synced: bool) -> list[Outcome]:
    """Apply verdicts with their follow-ups; see the contract. `synced`: plain ones survive a power cut too."""
    drafts: dict[int, list[EncodedDraft]] = {}
    if any(each.verdict.then for each in settlements):
        drafts = root.despite_full_disk(
            lambda: {n: encode(root, each.verdict.then) for n, each in enumerate(settlements) if each.verdict.then}
        )
    batches: dict[tuple[str, int], dict[int, Settlement]] = {}  # by queue and batch: one has all plain settlements
    for number, each in enumerate(settlements):
        batch = 1 + number // _FOLDERS if number in drafts else 0
        batches.setdefault((each.receipt.queue, batch), {})[number] = each
    outcomes = [Outcome.LOST] * len(settlements)
    for (name, _), batch_of in batches.items():
        queue = root.queues.get(name) or root.find(name)
        if queue is not None:
            for number, outcome in _settle_batch(root, queue, batch_of, drafts, synced=synced).items():
                outcomes[number] = outcome
    return outcomes


def _settle_batch(
    root: Root,
    queue: QueueDirectory,
    settlements: Mapping[int, Settlement],
    drafts: Mapping[int, list[EncodedDraft]],
    *,
    synced: bool,
    tries: int = _TRIES,
) -> dict[int, Outcome]:
    """Settle some messages of one queue together, so that they share the lock and the flushes."""
    cases: dict[int, Case] = {}
    leases = find_leases(root, queue, {each.receipt for each in settlements.values()})
    found = [number for number, each in settlements.items() if each.receipt in leases]
    published = published_before(root, (draft for number in found for draft in drafts.get(number, ())))
    for number, each in settlements.items():
        if (leased := leases.get(each.receipt)) is not None:
            case = cases[number] = Case(root, each, leased)
            if number in drafts:
                case.follow_up(root, [draft for draft in drafts[number] if draft not in published])
            elif each.verdict.failure is not None:
                case.reason = f"{queue.tmp}/{new_tag()}~why"
                root.write_small(case.reason, jsontext.pretty(each.verdict.failure), synced=synced)
    if root.layout.mirror:
        restate(root, queue, queue.inflight, [(c.leased.name, c.state, _reason_of(c)) for c in cases.values()])
    with_folder = [case for case in cases.values() if case.folder]
    fds: list[int] = []  # of the folders
    closing = map(os.close, fds)
    try:
        if with_folder:
            root.despite_full_disk(partial(_make_folders, root, with_folder, fds))
        with queue:
            for case in cases.values():
                case.applied = _commit(root, queue, case)
        committed = [case for case in with_folder if case.applied]
        if committed:
            own = zip(fds[-len(with_folder) :], with_folder, strict=True)
            durable.sync_all([fd for fd, case in own if case.applied])
    finally:
        close_all(closing)
    if committed:
        root.despite_full_disk(lambda: complete(root, [(case.folder, case.plan) for case in committed]))
    for case in cases.values():
        _tidy(root, queue, case)
    if synced and len(with_folder) < len(settlements):  # also for a repeated one, which may not be durable yet
        queue.sync({queue.dirs[case.state] for case in cases.values()} | {queue.inflight, queue.why})
    outcomes = {number: Outcome.APPLIED for number, case in cases.items() if case.applied}
    if len(outcomes) == len(settlements):
        return outcomes
    left = {number: each for number, each in settlements.items() if number not in outcomes}
    # If the name that we knew was wrong, another process may have extended the lease.
    tried = {each.receipt for number, each in left.items() if number in cases and tries > 1}
    extended = find_leases(root, queue, tried)
    again = {number: each for number, each in left.items() if each.receipt in extended}
    if again:
        outcomes |= _settle_batch(root, queue, again, drafts, synced=synced, tries=tries - 1)
    return outcomes | _settled_before(root, queue, {n: each for n, each in left.items() if n not in again})


def _reason_of(case: Case) -> str:
    failure = case.settlement.verdict.failure
    return "" if failure is None else failure.reason or failure.code


def _commit(root: Root, queue: QueueDirectory, case: Case) -> bool:
    """Move the leased file; False if it is gone. With the lock held."""
    source = f"{queue.inflight}/{case.leased.name}"
    try:
        if case.folder:
            root.move(source, f"{case.folder}/{INPUT}")
            queue.note_gone(case.leased.name)
            return True
        waits = case.state in (State.READY, State.DELAYED)
        case.name = _free_name(root, queue, case.state, case.name)
        if case.reason and os.path.lexists(source):  # nobody else moves it while we hold the lock
            root.move(case.reason, queue.reason(case.state, case.settlement.receipt.id, case.name))
        if waits:
            set_time(root, source)
        root.move(source, f"{queue.dirs[case.state]}/{case.name}")
        if waits:
            queue.note_renamed(case.leased.name, case.name)
        else:
            queue.note_gone(case.leased.name)
    except FileNotFoundError:
        return False
    return True


def _free_name(root: Root, queue: QueueDirectory, state: State, name: str) -> str:
    """Return a name that is free where the verdict moves the file, and where it moves from there when it comes due."""
    waits = state in (State.READY, State.DELAYED)
    return root.free_name(name, *(queue.waiting if waits else (queue.dirs[state],)))


def _tidy(root: Root, queue: QueueDirectory, case: Case) -> None:
    """Remove the hints and files that are not needed after a settlement, applied or not."""
    receipt, verdict = case.settlement
    queue.forget_lease(receipt.id, receipt.token)
    if not case.applied:
        if case.folder:
            _remove_folder(case.folder)
        elif case.reason:
            remove(case.reason)
        return
    waits = case.state in (State.READY, State.DELAYED)
    if verdict.failure is None if waits else case.leased.failed:
        remove(f"{queue.why}/{receipt.id}.why")
    if case.leased.slot.group or not root.names.native:
        queue.wake()  # the next of its group can be leased


def _settled_before(root: Root, queue: QueueDirectory, settlements: Mapping[int, Settlement]) -> dict[int, Outcome]:
    """Tell the verdicts that are repeated from those that come too late."""
    outcomes: dict[int, Outcome] = {}
    for kind, states in _STATES.items():
        of_kind = {number: each for number, each in settlements.items() if type(each.verdict) is kind}
        repeated = find_settled(root, queue, {each.receipt for each in of_kind.values()}, states)
        for number, each in of_kind.items():
            if each.receipt in repeated:
                outcomes[number] = Outcome.REPEATED
            elif _is_acked_by_removal(root, queue, each):
                if each.verdict.then:
                    publish(root, encode(root, each.verdict.then))
                outcomes[number] = Outcome.APPLIED
            else:
                outcomes[number] = Outcome.LOST
    return outcomes


def _is_acked_by_removal(root: Root, queue: QueueDirectory, settlement: Settlement) -> bool:
    """Say whether the file of an acknowledged message was removed by another program, which is an ack too."""
    receipt, verdict = settlement
    return root.layout.removal_acks and type(verdict) is Done and locate(root, queue, receipt.id) is None


# Folders of settlements with follow-ups


def _make_folders(root: Root, cases: Sequence[Case], fds: list[int]) -> None:
    """Make the folders with everything that belongs into them, durably; add an open descriptor of each to the list."""
    now = root.clock.now()
    try:
        files: list[EncodedDraft | StagedFile] = []
        for case in cases:
            os.mkdir(case.folder, 0o700)
            for number, draft in enumerate(case.drafts):
                draft.path = f"{case.folder}/{output_name(number, draft.queue.name, draft.final)}"
            files += case.drafts
            failure = case.settlement.verdict.failure
            if failure is not None:
                files.append(StagedFile(f"{case.folder}/{WHY}", jsontext.pretty(failure), now))
            files.append(StagedFile(f"{case.folder}/{PLAN}", plan_text(case.plan), now))
        stage(files)
        for case in cases:
            os.utime(case.folder, (now, now))
            open_into(fds, case.folder, os.O_RDONLY | os.O_DIRECTORY)
        durable.sync_all(fds[-len(cases) :])  # before these are those of an attempt on a full disk
        durable.sync_dir(root.settling)
    except BaseException:
        for case in cases:
            _remove_folder(case.folder)
        raise


def finish(root: Root, folder: str) -> bool:
    """Complete a folder that holds its input; False if it does not."""
    # Asked before and after: the plan is there before the input comes, and until the input has gone.
    if not is_committed(folder):
        return False
    plan = read_plan(folder)
    if not is_committed(folder):
        return False
    try:
        durable.sync_dir(folder)
        if plan is None:
            _finish_without_plan(root, folder)
        else:
            _restore_names(root, folder, plan)
            complete(root, [(folder, plan)])
    except FileNotFoundError:
        return False  # another process has finished it
    return True


def finish_if_possible(root: Root, folder: str) -> bool:
    """Complete a folder that holds its input; False if it does not.

    If the queue that it is for is damaged, the folder is left, and no other queue suffers; `root.stuck` says why.
    """
    try:
        finished = finish(root, folder)
    except DAMAGED_QUEUE as exc:
        if not is_of_queue(exc):
            raise
        root.stuck[folder] = str(exc)
        return True
    root.stuck.pop(folder, None)
    return finished


def complete(root: Root, committed: Sequence[tuple[str, Plan]]) -> None:
    """Move outputs and inputs of committed folders, which are durable, to their places. Flushes are shared."""
    _publish(root, [(folder, output) for folder, plan in committed for output in plan["outputs"]])
    for directory in {directory for folder, plan in committed for directory in _move_input(root, folder, plan)}:
        durable.sync_dir(directory)
    for folder, plan in committed:
        queue = root.make(plan["queue"])
        queue.wake()
        _remove_finished(root, folder, queue)


def _publish(root: Root, outputs: Sequence[tuple[str, Plan]]) -> None:
    outputs = [(folder, output) for folder, output in outputs if _claim(root, folder, output)]
    for queue in {root.make(output["queue"]) for _, output in outputs}:
        durable.sync_dir(queue.dedup)
    for folder, output in outputs:
        _move_output(root, folder, output)
    for directory in {root.make(output["queue"]).dirs[State(output["state"])] for _, output in outputs}:
        durable.sync_dir(directory)


def _claim(root: Root, folder: str, output: Plan) -> bool:
    queue = root.make(output["queue"])
    records = [(f"{queue.dedup}/{name}", expires) for name, expires in output["records"]]
    if not records:
        return True
    with queue:
        first = dedup.claim(records, First(*output["first"]), root.now(), LiveMessages(root, queue))
    if first is not None:
        discard([f"{folder}/{output['file']}"])
    return first is None


def _move_output(root: Root, folder: str, output: Plan) -> None:
    queue, name = root.make(output["queue"]), output["file"].partition("~")[2]
    state = State(output["state"])
    with queue:
        if state is not State.DEAD:
            name = stamped(root, queue, name)
        elif "why" in output and os.path.lexists(f"{folder}/{output['file']}"):
            root.write_small(queue.reason(state, output["first"][0], name), jsontext.pretty(output["why"]), synced=True)
        target = f"{queue.dirs[state]}/{name}"
        try:
            rename_new(f"{folder}/{output['file']}", target)
        except FileExistsError:
            discard([f"{folder}/{output['file']}"])
        except FileNotFoundError:
            pass  # another process has moved it


def _move_input(root: Root, folder: str, plan: Plan) -> tuple[str, str]:
    """Move the input to where its verdict takes it; return the directories that changed."""
    queue, state = root.make(plan["queue"]), State(plan["state"])
    with queue:
        name = _free_name(root, queue, state, plan["name"])
        reason = queue.reason(state, plan["id"], name)
        if os.path.lexists(f"{folder}/{INPUT}"):  # else another process has moved it
            with suppress(FileNotFoundError):
                root.move(f"{folder}/{WHY}", reason)
            set_time(root, f"{folder}/{INPUT}")
            root.move(f"{folder}/{INPUT}", f"{queue.dirs[state]}/{name}")
    return queue.dirs[state], os.path.dirname(reason)


def _remove_finished(root: Root, folder: str, queue: QueueDirectory) -> None:
    """Remove a finished folder. A file that its plan did not name is set aside."""
    try:
        os.unlink(f"{folder}/{PLAN}")
        os.rmdir(folder)
    except OSError:
        with suppress(FileNotFoundError):  # else another process has removed it
            _set_aside_all(root, queue, folder, remains(folder))
            _remove_folder(folder)


def _finish_without_plan(root: Root, folder: str) -> None:
    """Publish the follow-ups of a committed folder whose plan is damaged, and set its input aside as corrupt."""
    queues = queues_by_hash(root)
    _publish(root, [(folder, output) for output in _outputs_without_plan(root, folder, queues)])
    id, name = parse_folder(folder, queues)
    if name:
        queue = root.make(name)
        with queue:
            set_aside(root, queue, folder, INPUT, DecodeError(_DAMAGED, b""), name=id)
        queue.sync([queue.dirs[State.CORRUPT]])
        queue.wake()
        _remove_finished(root, folder, queue)


def _outputs_without_plan(root: Root, folder: str, queues: dict[str, str]) -> Iterator[Plan]:
    """Yield the follow-ups of a folder as a plan has them, from their names and documents."""
    for file, name, final in outputs_in(folder, queues):
        slot = root.names.parse(final)
        try:
            message = None if slot is None else read_message(root, f"{folder}/{file}", slot)
        except (FileNotFoundError, *UNREADABLE):
            continue
        if slot is not None and message is not None:
            draft = Draft(name, message, given_id=not is_ours(message.id))
            records = dedup.records_of(root.make(name), draft, root.clock.now())
            yield {
                "file": file,
                "queue": name,
                "first": First(message.id, new_tag(), "" if root.names.native else digest(slot.base, 10)),
                "state": state_in(root, slot),
                "records": [[os.path.basename(path), expires] for path, expires in records],
            }


def _set_aside_all(root: Root, queue: QueueDirectory, folder: str, names: Sequence[str]) -> None:
    with queue:
        for name in names:
            set_aside(root, queue, folder, name, DecodeError(_UNEXPLAINED, b""))
    queue.sync([queue.dirs[State.CORRUPT]])


def finish_all(root: Root, *, repair: bool = False) -> int:
    """Complete every folder that is committed, and remove old ones that are not; return how many were completed.

    A wall clock that jumped ahead makes a folder look old that its owner is just filling. So it must have been seen
    earlier too, and the time since then must really have passed; unless this is a `repair`.
    """
    done, now = 0, root.clock.boot()
    seen, root.unfinished = root.unfinished, {}
    for name in os.listdir(root.settling):
        folder = f"{root.settling}/{name}"
        if root.despite_full_disk(partial(finish_if_possible, root, folder)):
            done += not os.path.lexists(folder)
            continue
        since = root.unfinished[name] = seen.get(name, now)
        with suppress(OSError):  # another process removes it too
            if is_leftover(root, folder) and explain(root, folder) and (repair or now - since > _LEFTOVER_SECONDS):
                _give_up(root, folder)
    return done


def is_leftover(root: Root, path: str) -> bool:
    """Say whether a file or folder that belongs to nothing is so old that a crash must have left it."""
    try:
        return root.clock.now() - os.lstat(path).st_mtime > _LEFTOVER_SECONDS
    except FileNotFoundError:
        return False


def _give_up(root: Root, folder: str) -> None:
    """Remove a folder that is not committed. It is renamed first, so that its owner can no longer commit into it."""
    away = f"{root.settling}/.{new_tag()}"
    os.rename(folder, away)
    if is_committed(away):
        os.rename(away, folder)  # it was committed just now
    else:
        _remove_folder(away)


def explain(root: Root, folder: str) -> bool:
    """Say whether every file in a folder that is not committed belongs there.

    If not, one of them may be the input under another name, which gets its name back. Other files are set aside.
    """
    if not os.path.isdir(folder):
        return False
    plan = read_plan(folder)
    unnamed = [] if plan is None else _restore_names(root, folder, plan)
    others = {*unnamed, *unexplained(folder)}
    if others and (name := parse_folder(folder, queues_by_hash(root)).queue):
        _set_aside_all(root, root.make(name), folder, sorted(others) if plan is not None else os.listdir(folder))
    return not others and not is_committed(folder)


def _restore_names(root: Root, folder: str, plan: Plan) -> list[str]:
    """Give files that were renamed the names that the plan has for them; return the other unexplained ones."""
    wanted = {INPUT: (plan["name"], plan["id"])}
    wanted |= {output["file"]: (output["file"].partition("~")[2], output["first"][0]) for output in plan["outputs"]}
    present = os.listdir(folder)
    others = [name for name in present if name not in wanted and name not in (PLAN, WHY)]
    for other in list(others):
        missing = [file for file in wanted if file not in present]
        fitting = next((file for file in missing if _is_message(root, f"{folder}/{other}", *wanted[file])), "")
        if fitting:
            rename_new(f"{folder}/{other}", f"{folder}/{fitting}")
            present.append(fitting)
            others.remove(other)
    return others


def _is_message(root: Root, path: str, name: str, id: str) -> bool:
    """Say whether a file is the message that should have this name and this id."""
    slot = root.names.parse(name)
    try:
        return slot is not None and read_message(root, path, slot).id == id
    except (FileNotFoundError, *UNREADABLE):
        return False


def _remove_folder(folder: str) -> None:
    # Not shutil.rmtree: if an interrupt strikes there, it closes a descriptor twice, which may be another's by then.
    with suppress(OSError):
        discard(f"{folder}/{name}" for name in os.listdir(folder))
        os.rmdir(folder)
