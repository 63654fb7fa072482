"""Prints what Pabal costs on this machine: size on disk, start times, memory. For small boards; run it on yours.

    python scripts/board.py

It measures the Pabal that this Python imports, in a folder of its own that it removes. Times are the least of five.
"""

import io
import os
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import files
from pathlib import Path

import pabal
from pabal.errors import PabalError
from pabal.mailbox.client import Mailbox

PACKAGE = Path(pabal.__file__).parent
NEEDED = ("msgspec", "apsw", "click", "PyYAML")
COMMAND = [sys.executable, "-c", "from pabal.cli.main import main; main()"]
WORKER = """
import pabal
queue = pabal.connect("sqlite:a.db").queue("jobs")
queue.publish(1)
queue.lease(1)[0].ack()
"""
MEMORY = "print(open('/proc/self/status').read().split('VmRSS:')[1].split()[0])"


def wheel_bytes() -> int:
    """Return the size of the modules in a wheel, which is a zip file without compiled parts."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(PACKAGE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(PACKAGE.parent))
    return len(made.getvalue())


def installed_bytes(name: str) -> int:
    """Return the size of an installed package on disk."""
    return sum(path.stat().st_size for each in files(name) or () if (path := Path(str(each.locate()))).is_file())


def least_seconds(folder: str, *arguments: str) -> float:
    """Run a command five times and return the shortest time."""
    took = []
    for _ in range(5):
        began = time.monotonic()
        subprocess.run([*COMMAND, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        took.append(time.monotonic() - began)
    return min(took)


def resident_kilobytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])


@contextmanager
def manager(folder: str) -> Iterator[tuple[int, float]]:
    """Run a manager; yield its process id and the seconds until its first answer."""
    began = time.monotonic()
    process = subprocess.Popen([*COMMAND, "up"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.pid, _first_answer(Path(folder) / ".pabal/ipc") - began
    finally:
        process.terminate()
        process.wait()


def _first_answer(place: Path) -> float:
    while True:
        try:
            mailbox = Mailbox(place, "board", timeout=60)
        except PabalError:
            time.sleep(0.005)
            continue
        mailbox.ask("health")
        mailbox.close()
        return time.monotonic()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        version = f"{platform.machine()}, {64 if sys.maxsize > 2**32 else 32}-bit Python {platform.python_version()}"
        worker = [sys.executable, "-c", WORKER + MEMORY]
        found = {
            "machine": f"{version}, {os.cpu_count()} processors",
            "wheel": f"{wheel_bytes() / 1e6:.1f} MB",
            "needed packages": f"{sum(map(installed_bytes, NEEDED)) / 1e6:.1f} MB on disk",
            "pabal --version": f"{least_seconds(folder, '--version'):.2f} s",
            "pabal publish": f"{least_seconds(folder, 'publish', 'jobs', '1'):.2f} s",
            "a worker's memory": f"{int(subprocess.check_output(worker, cwd=folder)) / 1000:.0f} MB",
        }
        with manager(folder) as (pid, seconds):
            found["manager, first answer"] = f"after {seconds:.2f} s"
            found["a request with pabal mq"] = f"{least_seconds(folder, 'mq', 'queues'):.2f} s"
            found["manager, memory"] = f"{resident_kilobytes(pid) / 1000:.0f} MB"
    for name, value in found.items():
        sys.stdout.write(f"{name:<24}{value}\n")


if __name__ == "__main__":
    main()
