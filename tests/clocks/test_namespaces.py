"""Time namespaces, as containers may have: the boot clock of a process is that of the machine."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from pabal import clock
from pabal.clock import SystemClock
from tests.clocks.conftest import Start
from tests.waiting import until

ENTER = ["unshare", "--time", "--boottime", "86400", "--monotonic", "86400", "--fork"]


@pytest.fixture
def inside() -> list[str]:
    """The words before a command that run it in a time namespace, one day ahead."""
    try:
        tried = subprocess.run([*ENTER, "true"], capture_output=True, text=True)
        reason = tried.stderr.strip()
    except FileNotFoundError:
        reason = "unshare is missing"
    if reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have time namespaces: {reason}")
        pytest.skip(f"needs time namespaces: {reason}")
    return ENTER


@pytest.mark.parametrize("url", ["files", "sqlite", "hybrid"], indirect=True)
def test_leases_last_as_long_inside_as_outside(start: Start, inside: list[str]) -> None:
    outside, within = start(), start(wrap=inside)
    assert within("time.clock_gettime(time.CLOCK_BOOTTIME)") > time.clock_gettime(time.CLOCK_BOOTTIME) + 80_000
    for holder, other in ((outside, within), (within, outside)):
        holder("q.publish('x').id")
        holder("held.update(d=q.lease(1, visibility=60)[0])")
        assert other("q.lease(1)") == [] and other("q.sweep()") == 0
        assert 50 < other("q.store.next_due('jobs')") <= 60
        assert holder("held['d'].extend(0.2)") is None
        assert until(lambda other=other: other("[(d.body, d.ack())[0] for d in q.lease(1)]")) == ["x"]  # type: ignore[misc]


def test_the_boot_clock_is_read_again_in_a_child_of_another_namespace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, f"{SystemClock().boot_id} {SystemClock().boot():.3f}".encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    boot_id, boot = os.read(read, 100).decode().split()
    assert boot_id == SystemClock().boot_id and abs(float(boot) - SystemClock().boot()) < 60
    os.close(read)
    os.close(write)


def test_the_offset_of_the_initial_namespace_and_of_an_old_kernel_is_nothing() -> None:
    assert clock._offset(0) == 0 and clock._offset(0xEFFFFFFA) == 0


def test_a_process_that_made_a_namespace_for_its_children_only_keeps_its_own_clock(inside: list[str]) -> None:
    program = (
        "import ctypes; assert ctypes.CDLL(None).unshare(0x80) == 0;"  # CLONE_NEWTIME: the next child is inside
        "open('/proc/self/timens_offsets', 'w').write('boottime 86400 0\\n');"
        "import os, time; from pabal.clock import SystemClock;"
        "here = SystemClock().boot(), time.clock_gettime(7);"
        "child = os.fork();"
        "there = SystemClock().boot(), time.clock_gettime(7);"
        "child and os.waitpid(child, 0);"
        "print(round(here[1] - here[0]), round(there[1] - there[0]), round(there[0] - here[0]), flush=True)"
    )
    done = subprocess.run([os.sys.executable, "-c", program], capture_output=True, text=True, check=True)  # type: ignore[attr-defined]
    assert sorted(done.stdout.splitlines()) == ["0 0 0", "0 86400 0"]
