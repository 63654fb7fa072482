"""Readings of a process and of the disk."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from pabal.runtime import resources


def test_a_process_is_read() -> None:
    found = resources.usage()
    assert found is not None and found.pid == os.getpid()
    assert found.resident_bytes > 1 << 20 and found.descriptors > 2 and found.threads >= 1 and found.cpu_seconds > 0


def test_a_process_that_is_gone_has_no_reading() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        child.wait()
    assert resources.usage(child.pid) is None


def test_the_load_of_the_machine_is_read(tmp_path: Path) -> None:
    measure = resources.MachineLoad()
    measure(tmp_path)
    _be_busy()
    found = measure(tmp_path)
    assert 0 < found.cpu <= 100 and 0 < found.memory < 100 and 0 <= found.disk <= 100


def test_the_first_reading_has_nothing_to_compare_with(tmp_path: Path) -> None:
    """A role that has just started is busy itself: that is no news about the machine."""
    measure = resources.MachineLoad()
    _be_busy()
    assert measure(tmp_path).cpu == 0


def _be_busy() -> None:
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass


def test_readings_agree_with_those_of_psutil() -> None:
    process, found = psutil.Process(), resources.usage()
    assert found is not None
    assert found.cpu_seconds == pytest.approx(sum(process.cpu_times()[:2]), abs=1.0)
    assert found.resident_bytes == pytest.approx(process.memory_info().rss, rel=0.1)
    assert found.uptime_seconds == pytest.approx(time.time() - process.create_time(), abs=1.0)


def test_the_free_bytes_of_a_disk_are_read(tmp_path: Path) -> None:
    assert 0 < resources.free_bytes(tmp_path) <= shutil.disk_usage(tmp_path).total
