"""Each reader of `readers.py` takes any input: its own errors come out and no others, in bounded time and memory.

A few hundred inputs for each reader with a fixed seed; with PABAL_SOAK=1 a million, with a seed that a failure prints
(PABAL_FUZZ_SEED repeats it). Add an input that failed to `corpus/READER/` when it is mended.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fuzz.readers import CORPUS, READERS

SOAK = bool(os.environ.get("PABAL_SOAK"))
INPUTS = 1_000_000 if SOAK else 300
SEED = int(os.environ.get("PABAL_FUZZ_SEED", time.time_ns() % 1_000_000 if SOAK else 1))
EACH = 1 if SOAK else 10  # readers in one process: it takes a second or two to start
GROUPS = [list(READERS)[at : at + EACH] for at in range(0, len(READERS), EACH)]
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(6 * 3600 if SOAK else 300)
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_a_reader_raises_its_own_errors_only(names: list[str]) -> None:
    command = [sys.executable, "-m", "tests.fuzz.run", ",".join(names), str(INPUTS), str(SEED)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
    assert ran.returncode == 0, f"seed {SEED}: {ran.stderr[-6000:]}"


@pytest.mark.timeout(6 * 3600)
@pytest.mark.skipif(not SOAK, reason="a search by coverage takes minutes: `make soak`")
@pytest.mark.parametrize("name", READERS if SOAK else [])
def test_a_search_by_coverage_finds_no_other_error(name: str) -> None:
    pytest.importorskip("atheris", reason="atheris has no build for this Python")
    command = [sys.executable, "-m", "tests.fuzz.guided", name, str(INPUTS), str(SEED)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
    assert ran.returncode == 0 and "DONE" in ran.stderr, f"seed {SEED}: {ran.stderr[-6000:]}"


def test_each_reader_has_a_corpus_and_each_corpus_a_reader() -> None:
    assert {path.name for path in CORPUS.iterdir()} == READERS.keys()
    assert all(list((CORPUS / name).iterdir()) for name in READERS)


def test_each_corpus_has_inputs_that_are_read_and_is_small() -> None:
    """A corpus of refused inputs only would try nothing behind the first check."""
    for name, reader in READERS.items():
        read = 0
        for path in (CORPUS / name).iterdir():
            assert path.stat().st_size < 10_000
            try:
                reader.read(path.read_bytes())
                read += 1
            except reader.errors:
                pass
        assert read, name
