"""Ways to wake and watchers of other packages: a small class each, found by its name in the team file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pabal.apps.ignite.watchers.publish import watch_loop
from pabal.errors import ExtraMissing
from tests.apps.ignite.conftest import Lay

CODE = """
from pabal.watchers import Event, Found

class Drum:
    def __init__(self, place):
        self.place = place

    def wake(self, turn):
        with open(self.place.root / "drum", "a") as drum:
            drum.write(f"{turn.agent} {turn.about.options['beats']} {turn.path}\\n")

    def stop(self, turn):
        pass

class Ravens:
    def poll(self, look):
        yield Found((Event(key="raven", type="user_goal", body={"goal": "winter is coming"}, at=look.now),), {})

def ravens(options, folder, variables):
    return Ravens()
"""
POINTS = """
[pabal.ignite.wakes]
drum = tribe:Drum
broken = tribe_of_nobody:Drum
[pabal.ignite.watchers]
ravens = tribe:ravens
"""


@pytest.fixture
def tribe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of somebody else, installed."""
    place = tmp_path / "site"
    (place / "tribe-1.0.dist-info").mkdir(parents=True)
    (place / "tribe.py").write_text(CODE)
    (place / "tribe-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: tribe\nVersion: 1.0\n")
    (place / "tribe-1.0.dist-info/entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(place))


@pytest.mark.usefixtures("tribe")
def test_a_way_to_wake_of_another_package_wakes(lay: Lay) -> None:
    table = lay("agents: {leader: {}, worker: {wake: drum, options: {beats: 3}}}")
    table.send()
    held = table.hand()
    assert (table.root / "drum").read_text() == f"worker 3 {held.path}\n"


@pytest.mark.usefixtures("tribe")
def test_a_way_to_wake_that_cannot_be_loaded_is_named(lay: Lay) -> None:
    with pytest.raises(ExtraMissing, match="tribe_of_nobody"):
        lay("agents: {leader: {}, worker: {wake: broken}}")


@pytest.mark.usefixtures("tribe")
def test_a_watcher_of_another_package_is_heard(lay: Lay, tmp_path: Path) -> None:
    table = lay("agents: {leader: {}, worker: {}}\nwatchers: {crow: {kind: ravens, to: worker}}")
    assert watch_loop(table.workspace, "crow", folder=tmp_path, variables={}).once() == 1
    message = table.hand().message
    assert (message.sender, message.body) == ("crow", {"goal": "winter is coming"})
