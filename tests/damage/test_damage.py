"""Random damage to every kind of file of every embedded store: small here, ten thousand per store with PABAL_SOAK=1."""

import json
import random
import subprocess
import sys

import pytest

from tests.crash.harness import ROOT, SHARE, SOAK
from tests.damage.trial import TARGETS

MANY = round(10_000 * SHARE)
EACH = 1 if SOAK else 6  # targets in one process: it takes a second to start
_CASES = [
    (store, ",".join(list(targets)[at : at + EACH]))
    for store, targets in TARGETS.items()
    for at in range(0, len(targets), EACH)
]


@pytest.mark.timeout(7200 if SOAK else 300)
@pytest.mark.parametrize(("store", "names"), _CASES, ids=lambda text: text.partition(",")[0].replace(" ", "-"))
def test_damage_is_contained_found_and_never_made_worse(store: str, names: str) -> None:
    _no_faults("tests.damage.trial", store, names, count=-(-MANY // len(TARGETS[store])) if SOAK else 12)


@pytest.mark.timeout(7200 if SOAK else 300)
def test_damage_to_topics_is_contained_found_and_never_made_worse() -> None:
    _no_faults("tests.damage.topics", count=MANY if SOAK else 24)


@pytest.mark.timeout(7200 if SOAK else 300)
@pytest.mark.parametrize("store", ["sqlite", "hybrid"])
def test_salvage_leaves_nothing_behind_and_delivers_nothing_wrong(store: str) -> None:
    _no_faults("tests.damage.salvage", store, count=MANY if SOAK else 60)


def _no_faults(program: str, *arguments: str, count: int) -> None:
    first = random.randrange(1 << 32) if SOAK else 1  # the same ones each time, unless asked to look for more
    command = [sys.executable, "-m", program, *arguments, str(first), str(count)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    faults = [json.loads(line) for line in run.stdout.splitlines()]
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults[:10])
    print(f"{program} {' '.join(arguments)}: {count} damages from seed {first}, no fault")  # noqa: T201  for a soak
