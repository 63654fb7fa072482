"""Files in the pending folders that nobody takes are told once in the journal, and by status while they lie there."""

import os
from pathlib import Path

import pytest

from pabal.apps.kingdom.journal import read_journal
from pabal.apps.kingdom.king.role import tasks
from pabal.apps.kingdom.status import report
from pabal.apps.kingdom.unclaimed_files import CHECK_SECONDS
from pabal.testing import ManualClock
from tests.apps.kingdom.realm import Realm

PENDING = "queue/events/pending"
pytestmark = pytest.mark.parametrize("kind", ["files"], indirect=True)


def drop(realm: Realm, name: str, *, folder: str = PENDING, age: float = 10.0) -> Path:
    path = realm.root / folder / name
    path.write_text('{"id": "evt-1", "type": "github.pr.assigned"}')
    at = realm.clock.now() - age
    os.utime(path, (at, at))
    return path


def warnings(realm: Realm) -> list[str]:
    return [
        line["data"]["problem"] for line in read_journal(realm.home.journal.path) if line["type"] == "system.warning"
    ]


def test_an_event_file_of_another_ending_is_told_once_with_what_to_do(realm: Realm, clock: ManualClock) -> None:
    drop(realm, "evt-1.txt")
    king = tasks(realm.home)
    for _ in range(3):
        for task in king:
            task.step()
        clock.advance(CHECK_SECONDS)
    [told] = warnings(realm)
    assert f"{PENDING}: no role takes evt-1.txt" in told and "rename" in told
    assert report(realm.home).problems == [told]
    drop(realm, "evt-2")
    for task in king:
        task.step()
    assert len(warnings(realm)) == 2 and "evt-1.txt, evt-2" in warnings(realm)[-1]


def test_a_file_that_is_renamed_is_taken_and_no_more_told(realm: Realm) -> None:
    realm.general()
    path = drop(realm, "evt-1")
    realm.run_kingdom()
    assert not realm.tasks() and len(report(realm.home).problems) == 1
    path.rename(path.with_suffix(".json"))
    realm.run_kingdom()
    assert len(realm.tasks()) == 1 and report(realm.home).problems == []


def test_what_somebody_is_writing_is_no_stray(realm: Realm) -> None:
    drop(realm, "young.txt", age=1.0)
    drop(realm, ".hidden")
    drop(realm, "evt-1.json.tmp")
    (realm.root / PENDING / "folder").mkdir()
    realm.run_kingdom()
    assert report(realm.home).problems == [] and warnings(realm) == []
    drop(realm, "dated in the future", age=-3600.0)
    assert "dated in the future" in report(realm.home).problems[0]


def test_tasks_and_messages_are_looked_at_too_and_many_names_are_counted(realm: Realm) -> None:
    for number in range(8):
        drop(realm, f"m{number}", folder="queue/messages/pending")
    drop(realm, "\udcff", folder="queue/tasks/pending")
    tasks_, messages = report(realm.home).problems
    assert tasks_.startswith("queue/tasks/pending: no role takes ?")
    assert "m0, m1, m2, m3, m4 and 3 more" in messages
