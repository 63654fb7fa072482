"""Readings of a process and of the disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pabal.errors import ExtraMissing
from pabal.runtime import resources


def test_a_process_is_read() -> None:
    found = resources.usage()
    assert found is not None and found.pid == os.getpid()
    assert found.resident_bytes > 1 << 20 and found.descriptors > 2 and found.threads >= 1 and found.cpu_seconds > 0


def test_a_process_that_is_gone_has_no_reading() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        child.wait()
    assert resources.usage(child.pid) is None


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(ExtraMissing, match=r"pabal\[manager\]"):
        resources.usage()
    with pytest.raises(ExtraMissing, match=r"pabal\[kingdom\]"):
        resources.load(tmp_path)


def test_the_room_on_a_disk_is_read(tmp_path: Path) -> None:
    found = resources.room(tmp_path)
    assert 0 < found.free_bytes <= found.total_bytes
