"""For tests: a clock moved by hand, `drain`, fixtures of pytest, the conformance suites of stores, the history checker.

The suites need pytest and hypothesis; the others need nothing.
"""

import sys
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from pabal.errors import ExtraMissing
from pabal.testing.clock import ManualClock
from pabal.testing.drain import drain
from pabal.testing.history import Event, History, Report, check_history, read_history

if TYPE_CHECKING:
    from pabal.testing.codec_suite import CodecSuite
    from pabal.testing.store_suite import StoreSuite
    from pabal.testing.topic_suite import TopicSuite

__all__ = [
    "CodecSuite",
    "Event",
    "History",
    "ManualClock",
    "Report",
    "StoreSuite",
    "TopicSuite",
    "check_history",
    "drain",
    "read_history",
]

_SUITES = {"CodecSuite": "codec_suite", "StoreSuite": "store_suite", "TopicSuite": "topic_suite"}

if "pytest" in sys.modules:
    # pytest shows the values that an assert compared only in modules registered before their import.
    _asserting = {part.name for part in iter_modules(__path__, f"{__name__}.")} - sys.modules.keys()
    sys.modules["pytest"].register_assert_rewrite(*_asserting)


def __getattr__(name: str) -> Any:
    """Load a suite when it is first used, so that the clock works without pytest."""
    if name not in _SUITES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_SUITES[name]}"), name)
    except ModuleNotFoundError as exc:
        raise ExtraMissing(f"{name} needs {exc.name}: install Pabal with its extra 'testing' (README, Extras)") from exc
