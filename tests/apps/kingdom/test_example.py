"""The example of a kingdom runs as its page says, and its demo plays to the end."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.apps.kingdom.manifests import read_manifest
from tests.cli.command import COMMAND
from tests.test_docs import blocks_of, commands_of, matches, run

EXAMPLE = Path(__file__).parents[3] / "examples" / "kingdom"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "kingdom"
    shutil.copytree(EXAMPLE, place, ignore=shutil.ignore_patterns("__pycache__"))
    yield place
    subprocess.run([*COMMAND, "kingdom", "down", "--home", "town"], cwd=place, capture_output=True)


def test_the_page_of_the_kingdom_is_true(place: Path) -> None:
    for block in blocks_of(place / "README.md"):
        for command, shown in commands_of(block) if block.kind == "console" else []:
            printed = run(["bash", "-c", command], place)
            assert matches(shown, printed), f"$ {command}\nshown:\n{shown}\nprinted:\n{printed}"


def test_the_demo_goes_from_a_notification_to_an_answered_question_to_the_result(place: Path) -> None:
    printed = run([sys.executable, "demo.py"], place)
    told = [
        "Approve “Let couriers change horses”?",
        "answered: yes",
        "— approved",
        "2 events completed so far",
    ]
    assert [text for text in told if text not in printed] == [], printed


@pytest.mark.parametrize(
    ("general", "timeout", "types", "crons"),
    [
        ("gen-pr", 1800, ("github.pr.review_requested", "github.pr.mentioned", "github.pr.assigned"), []),
        ("gen-jira", 5400, ("jira.ticket.assigned", "jira.ticket.updated"), []),
        ("gen-test", 3600, (), ["0 22 * * 1-5"]),
    ],
)
def test_the_generals_take_what_they_always_took(
    general: str, timeout: int, types: tuple[str, ...], crons: list[str]
) -> None:
    manifest = read_manifest(EXAMPLE / "generals" / general / "manifest.yaml")
    assert (manifest.timeout_seconds, manifest.subscribes) == (timeout, types)
    assert [schedule.cron for schedule in manifest.schedules] == crons
