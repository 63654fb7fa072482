"""The manager process: owns a data root, serves its mailbox, sweeps its queues, until told to stop.

After an I/O error the store is opened anew, with the mailbox waiting meanwhile: what lies in it is answered then.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import FrameType

from pabal.clock import Clock
from pabal.connect import Connection, connect
from pabal.errors import InvalidConfig, PabalError, StoreError
from pabal.mailbox.server import MailboxServer
from pabal.mailbox.settings import MailboxSettings
from pabal.manager.config import Config
from pabal.manager.metrics import Metrics
from pabal.manager.observed import ObservedStore
from pabal.manager.report import Report
from pabal.manager.sweeps import Sweeps
from pabal.runtime.heartbeat import Heartbeat
from pabal.runtime.lock import PlaceLock
from pabal.runtime.notify import Notifier
from pabal.runtime.service import Service
from pabal.runtime.wake import FdWatch
from pabal.store import Checkable

log = logging.getLogger("pabal")

LOCK, HEARTBEAT = "manager.lock", "manager.heartbeat"  # in the data root
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds before a store that failed is opened again
# What only a new start can change.
_FIXED = ("root", "ipc_root", "backend", "store_url", "ipc", "clients", "group", "node_id", "log_root")


class Manager:
    """One manager for one data root, from the moment it is made until it is closed."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock,
        reread: Callable[[], Config],
        notifier: Notifier | None = None,
        passed: Callable[[Report], None] = lambda report: None,
    ) -> None:
        self.config = config
        self.metrics = Metrics(clock)
        self._clock = clock
        self._reread = reread
        self._notifier = notifier or Notifier()
        self._passed = passed
        self._service: Service | None = None
        self._stopping = False
        self._reload_wanted = False
        self._failures = 0
        with ExitStack() as locks:
            locks.enter_context(closing(root_lock(config.root, clock.now())))
            # Of two roots, each with its own lock, the configurations may name one mailbox.
            locks.enter_context(closing(_mailbox_lock(config.ipc_root, clock.now())))
            self._locks = locks.pop_all()

    def close(self) -> None:
        self._locks.close()

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or `stop`."""
        signal.signal(signal.SIGHUP, self._note_hangup)
        while not self._stopping:
            try:
                self._serve()
            except (StoreError, OSError) as exc:
                if self._service is None:
                    raise  # it never worked: the operator should know at once
                self._wait_out(exc)
        self._notifier.stopping()
        log.info("stopped")

    def stop(self) -> None:
        """End `run` once what was taken is answered. From any thread."""
        self._stopping = True
        if self._service is not None:
            self._service.stop()

    def _note_hangup(self, number: int, frame: FrameType | None) -> None:
        """Keep the wish for a reload until something is served that could take it over."""
        self._reload_wanted = True

    def _serve(self) -> None:
        with ExitStack() as stack:
            connection = self._open(stack)
            sweeps = Sweeps(connection, clock=self._clock, interval=self.config.sweep_interval)
            self._apply(sweeps)
            report = Report(self.config, connection, self.metrics, self._clock)
            server = stack.enter_context(closing(self._mailbox(connection, report)))
            heartbeat = Heartbeat(self.config.root / HEARTBEAT, "manager", self._clock)
            service = Service(
                server.watch, server, sweeps, heartbeat=heartbeat, passed=lambda: self._pass(server, report)
            )
            self._service = service
            if self._stopping:
                return
            told = {"root": str(self.config.root), "mailbox": str(self.config.ipc_root), "store": self.config.store_url}
            log.info("serving", extra={"pabal": told})
            self._notifier.ready(f"serving {self.config.ipc_root}")
            with service.on_signals({signal.SIGHUP: lambda: self._reload(sweeps, server)}):
                if self._reload_wanted:
                    self._reload(sweeps, server)
                service.run()
            self._stopping = True

    def _open(self, stack: ExitStack) -> Connection:
        opened = stack.enter_context(connect(self.config.store_url, clock=self._clock))
        store = ObservedStore(opened.store, self.metrics)
        if self.config.check_on_start and isinstance(opened.store, Checkable):
            for finding in opened.store.check(repair=self.config.repair):
                log.warning("%s", finding.problem, extra={"pabal": finding._asdict()})
        return Connection(store, clock=self._clock, consumer=self.config.node_id)

    def _mailbox(self, connection: Connection, report: Report) -> MailboxServer:
        ipc = self.config.ipc
        settings = MailboxSettings(
            requests=ipc.requests_dir,
            processing=ipc.processing_dir,
            responses=ipc.responses_dir,
            dead=ipc.dead_dir,
            stale_seconds=ipc.stale_timeout_ms / 1000,
            answers_kept=ipc.responses_kept_ms / 1000,
            watched=ipc.use_folder_watcher,
            poll_seconds=ipc.poll_interval_ms / 1000,
            max_bytes=ipc.max_request_bytes,
            max_waiting_per_client=ipc.max_waiting_per_client,
            queues=self.config.queues,
            clients=self.config.clients,
            group=self.config.group,
        )
        return MailboxServer(
            self.config.ipc_root,
            connection,
            clock=self._clock,
            settings=settings,
            observe=self.metrics.answered,
            extras={"health": report.health, "metrics": report.metrics},
        )

    def _pass(self, server: MailboxServer, report: Report) -> None:
        if server.broken is not None:
            raise server.broken
        self._failures = 0
        self._notifier.alive()
        self._passed(report)

    def _apply(self, sweeps: Sweeps) -> None:
        config = self.config
        changed = sweeps.configure(config.policies, config.default_policy, config.sweep_interval)
        if changed:
            log.info("policies set", extra={"pabal": {"queues": changed}})

    def _reload(self, sweeps: Sweeps, server: MailboxServer) -> None:
        """Take over a changed configuration; keep the old one if there is a mistake in the new."""
        self._reload_wanted = False
        try:
            found = self._reread()
        except InvalidConfig as exc:
            log.error("configuration not reloaded", extra={"pabal": {"mistakes": list(exc.mistakes) or [str(exc)]}})
            return
        except OSError as exc:  # the folder that it was started in is gone, for instance
            log.error("configuration not reloaded: %s", exc)
            return
        kept = {name: getattr(self.config, name) for name in _FIXED}
        fixed = [name for name, value in kept.items() if getattr(found, name) != value]
        try:
            self.config = replace(found, **kept)
            self._apply(sweeps)
            server.allow(self.config.queues)
        except PabalError as exc:
            log.error("configuration not reloaded: %s", exc)
            return
        log.info("configuration reloaded", extra={"pabal": {"source": found.source, "needs_restart": fixed}})

    def _wait_out(self, exc: StoreError | OSError) -> None:
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._failures, 10))
        self._failures += 1
        failed = "store" if isinstance(exc, StoreError) else "mailbox"
        log.error("the %s failed: %s", failed, exc, extra={"pabal": {"code": type(exc).__name__, "again_in": pause}})
        with closing(FdWatch()) as watch:
            service = self._service = Service(watch)
            with service.on_signals({}):
                self._stopping = self._stopping or _interrupted(service, watch, pause)


def root_lock(root: Path, now: float) -> PlaceLock:
    """Hold a data root; raise ManagerRunning if another manager does."""
    advice = "stop it first, or give another --root"
    return PlaceLock(root / LOCK, now, f"{root} is served already", advice=advice)


def _interrupted(service: Service, watch: FdWatch, seconds: float) -> bool:
    """Sleep; say whether somebody asked to stop meanwhile."""
    watch.wait(seconds)
    return service.stopping


def _mailbox_lock(ipc_root: Path, now: float) -> PlaceLock:
    advice = "stop it first, or give each data root a mailbox of its own"
    return PlaceLock(ipc_root / ".lock", now, f"the mailbox {ipc_root} is served already", advice=advice)
