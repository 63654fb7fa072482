"""How roles run: each is one process with a lock, a service loop and a heartbeat.

The roles are `sentinel`, `envoy`, `king`, `chamberlain`, and `gen-…` for every general.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from importlib import import_module

from pabal.apps.kingdom.config import ROLES
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.journal import FAILED
from pabal.apps.kingdom.queue_place import require_place
from pabal.errors import InvalidInput, PabalError
from pabal.runtime.heartbeat import Heartbeat
from pabal.runtime.role_lock import RoleLock
from pabal.runtime.service import Service, Task
from pabal.store import FailureCode, Receipt, Settlement, State, Watch


def role_lock(home: Home, name: str) -> RoleLock:
    """Take the lock of a role; raise AlreadyRunning if another process has it."""
    place = home.root / "state" / name / "lock"
    return RoleLock(place, home.clock.now(), f"{name} of {home.root} runs already", advice="stop it first")


def serve(home: Home, name: str, watch: Watch, *tasks: Task, finish: Callable[[], None] = lambda: None) -> None:
    """Run the tasks of a role until SIGTERM or SIGINT; the current pass is finished, then `finish` is called.

    The caller holds the lock of the role. Signals that come while it finishes change nothing.
    """
    heartbeat = Heartbeat(home.root / "state" / name / "heartbeat", name, home.clock)
    with closing(watch):
        service = Service(watch, *tasks, heartbeat=heartbeat)
        with service.on_signals({}):
            home.journal.note("system.startup", name)
            try:
                service.run()
            finally:
                finish()
        home.journal.note("system.shutdown", name)


def run_role(home: Home, name: str) -> None:
    """Run a role until it is stopped. An error that ends it is noted in the journal, where `status` finds it."""
    try:
        _run(home, name)
    except PabalError as exc:
        home.journal.note(FAILED, name, problem=f"{exc.code}: {exc}"[:300])
        raise


def _run(home: Home, name: str) -> None:
    home.prepare()
    require_place(home)
    if name.startswith("gen-"):
        from pabal.apps.kingdom.general.role import run as lead

        lead(home, name)
    elif name in ROLES:
        import_module(f"pabal.apps.kingdom.{name}.role").run(home)
    else:
        raise InvalidInput(f"a role is one of {', '.join(ROLES)} or gen- and a name; found {name!r:.80}")


def reclaim(home: Home, queue: str, target: str = "") -> int:
    """End the leases that a dead role left, as if they had expired; return how many.

    Only the single consumer of the queue, or of the messages to `target`, may call this: its lock proves that no other
    process holds these leases.
    """
    own = home.queue(queue, target)
    settlements = []
    for entry in own.entries(State.INFLIGHT):
        if entry.message is None or (target and entry.message.target != target):
            continue
        failure = own.settler.failure(FailureCode.LEASE_EXPIRED, "the lease ran out", entry.attempt, entry.failure)
        verdict = own.settler.judge(entry.message, failure, delay=0.0)
        settlements.append(Settlement(Receipt(queue, entry.id, entry.token), verdict))
    if settlements:
        home.store.settle(settlements)
    return len(settlements)
