"""Programs from npm that judge the server: the official conformance runner, the inspector, and a tokenizer."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.services import npm

JS = Path(__file__).parent / "js"
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
    return npm.installed("mcp-tools", JS, "the MCP inspector and conformance runner")


def run_js(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run Node.js in the folder of these packages."""
    return npm.run_node(installed(), *arguments, stdin=stdin)


def counted_by_o200k(texts: Sequence[str]) -> list[int]:
    """Count the tokens of texts as OpenAI's models do."""
    done = run_js("--input-type=module", "--eval", _COUNT, stdin=json.dumps(list(texts)))
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found
