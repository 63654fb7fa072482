"""The King as a process: results first, for they make room, then events, schedules, and files that nobody takes."""

from __future__ import annotations

from contextlib import closing

from pabal.kingdom.home import Home
from pabal.kingdom.king.archive import Archive
from pabal.kingdom.king.dispatch import Dispatch
from pabal.kingdom.king.results import Results
from pabal.kingdom.king.schedules import Schedules
from pabal.kingdom.layout import EVENTS, RESULTS
from pabal.kingdom.reclaiming import reclaim
from pabal.kingdom.routing import Routing
from pabal.kingdom.serving import role_lock, serve
from pabal.kingdom.strays import Strays
from pabal.runtime.service import Task

_BLOCK = 20  # ids reserved at once


def run(home: Home) -> None:
    """Reign until told to stop."""
    with closing(role_lock(home, "king")):
        reclaim(home, EVENTS)
        reclaim(home, RESULTS)
        serve(home, "king", home.watch(EVENTS, RESULTS), *tasks(home))


def tasks(home: Home) -> tuple[Task, ...]:
    """Return what a King does, with what a former one left undone made good."""
    home.task_ids.block = home.notice_ids.block = _BLOCK
    archive = Archive(home)
    archive.catch_up()
    routing = Routing(home.root, home.config.engine)
    return Results(home, archive), Dispatch(home, routing, archive), Schedules(home, routing), Strays(home)
