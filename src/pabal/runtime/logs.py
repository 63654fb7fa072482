"""The log of a service: one JSON object per line, with ids, numbers and the reasons of failures, never with a body.

A call gives its values by name, as in `log.warning("%(queue)s waits: %(error)s", {"queue": …, "error": …})`. So each is
a field of the line, the text with them is its `message`, and the text without them its `event`, which is always the
same. Values that the text does not need are given as `extra={"pabal": {…}}`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path

from pabal.clock import iso_stamp
from pabal.durable import make_dirs, translated
from pabal.filesystem import private
from pabal.jsontext import storable

_VALUE = re.compile(r"\s*%(?:\(\w+\))?[-+ 0-9.]*[a-z]\s*")
_LEVELS = {"pabal": logging.INFO, "uvicorn": logging.WARNING}


def event_of(record: logging.LogRecord) -> str:
    """Return a name that is the same for every record of one place in the code: its text without the values."""
    if not record.args:
        return str(record.msg)
    return _VALUE.sub(" ", str(record.msg)).strip(" :;,/()") or record.funcName or record.name


class JsonLines(logging.Formatter):
    """A line with time, level, node and event, the whole text if it says more, and the fields that the caller gave."""

    def __init__(self, node_id: str) -> None:
        super().__init__()
        self._node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": iso_stamp(record.created),
            "level": record.levelname.lower(),
            "node": self._node_id,
        }
        line["event"] = event = event_of(record)
        if (text := record.getMessage()) != event:
            line["message"] = text
        if isinstance(record.args, Mapping):
            line.update(record.args)
        line.update(getattr(record, "pabal", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # Not as strict as jsontext: a line with an odd value is better than no line.
        return storable(json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str))


class _LogFile(WatchedFileHandler):
    """A file that may be rotated. If it cannot be opened again, the error goes to stderr and the work goes on."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=private)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)


@contextmanager
def log_lines(node_id: str, path: Path | None = None, *, form: logging.Formatter | None = None) -> Iterator[None]:
    """Write the library's log, and warnings of its HTTP server, to a file or to stderr, as long as the block runs.

    A program that rotates logs may move the file away: the next line begins a new one. `form` replaces lines of JSON.
    """
    handler: logging.Handler
    if path is not None:
        with translated(f"opening the log in {path.parent}"):
            make_dirs(path.parent)
            handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    else:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(form or JsonLines(node_id))
    for name, level in _LEVELS.items():
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name in _LEVELS:
            logging.getLogger(name).removeHandler(handler)
        handler.close()
