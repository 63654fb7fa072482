"""The manager process: owns a data root, serves its mailbox and sweeps its queues until it is stopped.

After an I/O error the manager opens the store again. Requests wait in the mailbox meanwhile and are answered then.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from pabal.clock import Clock
from pabal.connect import Connection, connect
from pabal.errors import InvalidConfig, PabalError, StoreError, StoreMissing
from pabal.mailbox.folders import Folders
from pabal.mailbox.server import MailboxServer
from pabal.mailbox.settings import MailboxSettings
from pabal.manager.config import Config
from pabal.manager.metrics import Metrics
from pabal.manager.report import Report
from pabal.manager.sweeper import Sweeper
from pabal.runtime.heartbeat import Heartbeat
from pabal.runtime.notify import Notifier
from pabal.runtime.reopening import Reopening
from pabal.runtime.role_lock import RoleLock
from pabal.runtime.service import Service
from pabal.store import Checkable

log = logging.getLogger("pabal")

LOCK, HEARTBEAT = "manager.lock", "manager.heartbeat"  # in the data root
LOG = "manager.jsonl"  # in the folder of the log
# What only a restart can change.
_FIXED = ("root", "ipc_root", "backend", "store_url", "ipc", "clients", "group", "node_id", "log_root", "gateway")


class Manager:
    """One manager for one data root. It holds the root from its construction until it is closed."""

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
        self._reload_wanted = False
        self._reopening = Reopening((StoreError, OSError), failed=_log_failure, hangup=self._want_reload)
        with ExitStack() as locks:
            locks.enter_context(closing(root_lock(config.root, clock.now())))
            # The configurations of two roots, each with its own lock, may name the same mailbox.
            locks.enter_context(closing(_mailbox_lock(config.ipc_root, clock.now())))
            self._locks = locks.pop_all()

    def close(self) -> None:
        self._locks.close()

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or `stop`."""
        self._reopening.run(self._serve)
        self._notifier.stopping()
        log.info("stopped")

    def stop(self) -> None:
        """End `run` once the requests that were taken are answered. From any thread."""
        self._reopening.stop()

    def _want_reload(self) -> None:
        """Remember that a reload is wanted until the mailbox is served and can reload."""
        self._reload_wanted = True

    def _serve(self) -> None:
        with ExitStack() as stack:
            connection = self._open(stack)
            sweeper = Sweeper(connection, clock=self._clock, interval=self.config.sweep_interval)
            self._apply(sweeper)
            report = Report(self.config, connection, self.metrics, self._clock)
            server = stack.enter_context(closing(self._mailbox(connection, report)))
            heartbeat = Heartbeat(self.config.root / HEARTBEAT, "manager", self._clock)
            service = Service(
                server.watch, server, sweeper, heartbeat=heartbeat, passed=lambda: self._pass(server, report)
            )
            self._reopening.began(service)
            if self._reopening.stopping:
                return
            details = {
                "root": str(self.config.root),
                "mailbox": str(self.config.ipc_root),
                "store": self.config.store_url,
            }
            with service.on_signals({signal.SIGHUP: lambda: self._reload(sweeper, server)}):
                log.info("serving", extra={"pabal": details})
                self._notifier.ready(f"serving {self.config.ipc_root}")
                report.look()
                if self._reload_wanted:
                    self._reload(sweeper, server)
                service.run()
            self._reopening.stopping = True

    def _open(self, stack: ExitStack) -> Connection:
        opened = stack.enter_context(connect(self.config.store_url, clock=self._clock))
        if self.config.check_on_start and isinstance(opened.store, Checkable):
            for finding in opened.store.check(repair=self.config.repair):
                log.warning("finding: %(where)s: %(problem)s: %(remedy)s", finding._asdict())
        return Connection(opened.store, clock=self._clock, consumer=self.config.node_id)

    def _mailbox(self, connection: Connection, report: Report) -> MailboxServer:
        return MailboxServer(
            self.config.ipc_root,
            connection,
            clock=self._clock,
            settings=_mailbox_settings(self.config),
            observe=self.metrics.answered,
            extras={"health": report.health, "metrics": report.metrics},
        )

    def _pass(self, server: MailboxServer, report: Report) -> None:
        if server.broken is not None:
            raise server.broken
        self._reopening.passed()
        self._notifier.alive()
        report.look()
        self._passed(report)

    def _apply(self, sweeper: Sweeper) -> None:
        config = self.config
        changed = sweeper.configure(config.policies, config.default_policy, config.sweep_interval)
        if changed:
            log.info("policies set", extra={"pabal": {"queues": changed}})

    def _reload(self, sweeper: Sweeper, server: MailboxServer) -> None:
        """Apply a changed configuration; keep the old one if there is a mistake in the new."""
        self._reload_wanted = False
        try:
            found = self._reread()
            kept = {name: getattr(self.config, name) for name in _FIXED}
            fixed = [name for name, value in kept.items() if getattr(found, name) != value]
            self.config = replace(found, **kept)
            self._apply(sweeper)
            server.allow(self.config.queues, self.config.default_policy)
        except InvalidConfig as exc:
            log.error("configuration not reloaded", extra={"pabal": {"mistakes": list(exc.mistakes) or [str(exc)]}})
            return
        except (PabalError, OSError) as exc:  # for instance, the working directory is gone
            log.error("configuration not reloaded: %(error)s", {"error": str(exc)})
            return
        log.info("configuration reloaded", extra={"pabal": {"source": found.source, "needs_restart": fixed}})


def _mailbox_settings(config: Config) -> MailboxSettings:
    ipc = config.ipc
    return MailboxSettings(
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
        queues=config.queues,
        clients=config.clients,
        group=config.group,
        new_queue=config.default_policy,
        heartbeat=str(config.root / HEARTBEAT),
    )


def find_obstacles(config: Config) -> tuple[str, ...]:
    """Return why a manager could not start here with this configuration, one line each. Makes nothing.

    A manager that runs already is no obstacle: its configuration is checked before it reads it again.
    """
    unusable = {wrong: key for key, path in reversed(config.folders.items()) if (wrong := _unusable(path))}
    found = [f"{key}: {wrong}" for wrong, key in unusable.items()]  # of folders within each other only the outer one
    if not found:
        for key, check in (("ipc.root", partial(_check_mailbox, config)), ("store", partial(_check_store, config))):
            try:
                check()
            except (PabalError, OSError) as exc:
                found.append(f"{key}: {exc}")
    return tuple(found)


def _unusable(folder: Path) -> str:
    """Return why this cannot be a folder that the manager writes to; empty if it can."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        return f"{there} is not a folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written to by uid {os.geteuid()}"
    return ""


def _check_mailbox(config: Config) -> None:
    Folders(config.ipc_root, _mailbox_settings(config)).check()


def _check_store(config: Config) -> None:
    with suppress(StoreMissing), connect(config.store_url, create=False):
        pass


def _log_failure(exc: Exception, pause: float) -> None:
    text = "the store failed: %(error)s" if isinstance(exc, StoreError) else "the mailbox failed: %(error)s"
    log.error(text, {"error": str(exc), "code": type(exc).__name__, "again_in": pause})


def root_lock(root: Path, now: float) -> RoleLock:
    """Lock a data root; raise AlreadyRunning if another manager holds it."""
    advice = "stop it first, or give another --root"
    return RoleLock(root / LOCK, now, f"{root} is served already", advice=advice)


def _mailbox_lock(ipc_root: Path, now: float) -> RoleLock:
    advice = "stop it first, or give each data root a mailbox of its own"
    return RoleLock(ipc_root / ".lock", now, f"the mailbox {ipc_root} is served already", advice=advice)
