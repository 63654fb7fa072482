"""The manager's log: one JSON object per line, ids and numbers only, never what a message holds."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path

from pabal.durable import make_dirs, translated
from pabal.jsontext import storable

FILE = "manager.jsonl"


class JsonLines(logging.Formatter):
    """At, level, event, and the fields that the caller named."""

    def __init__(self, node_id: str) -> None:
        super().__init__()
        self._node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, object] = {"at": at, "level": record.levelname.lower(), "node": self._node_id}
        line["event"] = record.getMessage()
        line.update(getattr(record, "pabal", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # Not as strict as jsontext: a line that says something odd is better than none.
        return storable(json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str))


class _LogFile(WatchedFileHandler):
    """A file that may be moved away. Where it cannot be made anew, stderr is told and the work goes on."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)


def start_log(node_id: str, log_root: Path | None) -> logging.Handler:
    """Send what the library logs to a file under `log_root`, or to stderr if there is none.

    The file may be moved away by a program that rotates logs: the next line begins a new one.
    """
    handler: logging.Handler
    if log_root is not None:
        with translated(f"opening the log in {log_root}"):
            make_dirs(log_root)
            handler = _LogFile(log_root / FILE, encoding="utf-8", errors="backslashreplace")
    else:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(node_id))
    logger = logging.getLogger("pabal")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return handler


def end_log(handler: logging.Handler) -> None:
    logging.getLogger("pabal").removeHandler(handler)
    handler.close()
