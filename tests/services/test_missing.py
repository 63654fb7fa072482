"""Where a server cannot be had, the tests that need it say so; where everything should be there, they fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

# What a test needs, the words in which it is missed, and a module that hides what is not found by the PATH.
SERVERS = {
    "kafka": ("mvn: run scripts/system-packages", ""),
    "postgres": ("PostgreSQL: run scripts/system-packages", "import tests.services.postgres as p; p.DEBIAN = ''"),
}


def run_without(server: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a test that needs a server, in a process that finds no program at all."""
    _, hiding = SERVERS[server]
    (folder / "hiding.py").write_text(hiding)
    asking = folder / "test_asking.py"
    asking.write_text(f"def test_it({server}): raise AssertionError('it was started after all')\n")
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-p", "hiding", "-p", "tests.conftest"]
    return subprocess.run(
        [*command, "--rootdir", str(folder), "-c", os.devnull, str(asking)],
        cwd=ROOT,
        env={"PATH": str(folder), "PYTHONPATH": str(folder), "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("server", SERVERS)
def test_what_needs_a_server_that_is_not_there_is_skipped_aloud(server: str, tmp_path: Path) -> None:
    done = run_without(server, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 skipped" in done.stdout and f"needs {SERVERS[server][0]}" in done.stdout


@pytest.mark.parametrize("server", SERVERS)
def test_with_ci_a_server_that_is_not_there_is_a_failure(server: str, tmp_path: Path) -> None:
    done = run_without(server, tmp_path, CI="true")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 error" in done.stdout and f"CI must have {SERVERS[server][0]}" in done.stdout


def test_each_program_that_kafka_needs_is_named(tmp_path: Path) -> None:
    (tmp_path / "mvn").symlink_to("/bin/true")
    done = run_without("kafka", tmp_path)
    assert "needs java: run scripts/system-packages" in done.stdout
