"""The King as a process: results first, because they make room, then events, schedules and unclaimed files."""

from __future__ import annotations

from contextlib import closing

from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.king.archive import Archive
from pabal.apps.kingdom.king.dispatch import Dispatch
from pabal.apps.kingdom.king.results import Results
from pabal.apps.kingdom.king.resume import QuestionUpkeep
from pabal.apps.kingdom.king.schedules import Schedules
from pabal.apps.kingdom.layout import EVENTS, RESULTS
from pabal.apps.kingdom.manifests import Routing
from pabal.apps.kingdom.roles import reclaim, role_lock, serve
from pabal.apps.kingdom.unclaimed_files import UnclaimedFiles
from pabal.runtime.service import Task

_BLOCK = 20  # ids reserved at once


def run(home: Home) -> None:
    """Run until stopped."""
    with closing(role_lock(home, "king")):
        reclaim(home, EVENTS)
        reclaim(home, RESULTS)
        try:
            serve(home, "king", home.watch(EVENTS, RESULTS), *tasks(home))
        finally:
            home.task_ids.give_back()
            home.notice_ids.give_back()


def tasks(home: Home) -> tuple[Task, ...]:
    """Return the tasks of the King; what a former King left is archived first."""
    home.task_ids.block = home.notice_ids.block = _BLOCK
    archive = Archive(home)
    archive.catch_up()
    routing = Routing(home.root, home.config.engine)
    return (
        QuestionUpkeep(home),  # what it publishes is dispatched in the same pass
        Results(home, archive),
        Dispatch(home, routing, archive),
        Schedules(home, routing),
        UnclaimedFiles(home),
    )
