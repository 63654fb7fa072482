"""The tools are few, short, always in the same order, and say what is wrong with a call."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pabal.errors import InvalidInput
from pabal.mcp.tools import MAIL_TOOLS, MOST_TOKENS, QUEUE_TOOLS, Tool, cost
from tests.cli.command import Pabal

NAMES = ["send", "receive", "ack", "fail", "extend", "look", "ask_human", "status"]
SETS = pytest.mark.parametrize("tools", [QUEUE_TOOLS, MAIL_TOOLS], ids=["queues", "mail"])


@SETS
def test_the_tools_stay_cheap_and_in_order(tools: tuple[Tool, ...]) -> None:
    assert [tool.name for tool in tools] == NAMES
    assert sum(cost(tools).values()) < MOST_TOKENS
    documents = [tool.document() for tool in tools]
    assert json.dumps(documents) == json.dumps([tool.document() for tool in tools])
    for document in documents:
        hints = document["annotations"]
        assert hints["readOnlyHint"] == (document["name"] in ("look", "status"))
        assert not (hints["readOnlyHint"] and hints["destructiveHint"])
        schema = document["inputSchema"]
        assert schema["additionalProperties"] is False and "title" not in json.dumps(schema["properties"])
        assert "$ref" not in json.dumps(schema) and "null" not in json.dumps(schema)


def test_the_cost_is_printed(pabal: Pabal) -> None:
    [found] = pabal("mcp", "--cost", "--json").documents
    assert found["queues"] == {"tools": cost(QUEUE_TOOLS), "total": sum(cost(QUEUE_TOOLS).values())}
    assert found["mail"]["total"] == sum(cost(MAIL_TOOLS).values())
    assert f"at most {MOST_TOKENS} together" in pabal.ok("mcp", "--cost")


def test_without_the_extra_the_command_names_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['mcp'] = None; from pabal.cli.main import main; main()"
    command = [sys.executable, "-c", code, "mcp", "--url", f"sqlite:{tmp_path}/store.db"]
    ran = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ran.returncode == 7 and "install Pabal with its extra 'mcp'" in ran.stderr and ran.stdout == ""


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("ack", {}, "missing required field `receipt`; it takes receipt, reply?"),
        ("ack", {"receipt": 7}, r"Expected `str`, got `int` - at `\$.receipt`"),
        ("receive", {"queue": "jobs", "wait": "long"}, r"got `str` - at `\$.wait`"),
        ("receive", {"queue": "jobs", "limit": 3}, "unknown field `limit`; it takes queue, wait.*, max"),
        ("look", {"queue": "jobs", "state": "asleep"}, "Invalid enum value 'asleep'"),
        ("ask_human", {"question": "?", "options": "yes"}, "Expected `array`"),
        ("send", {"to": "jobs", "body": 1, "priority": "high"}, "Expected `int`"),
        ("status", {"verbose": True}, "it takes no arguments"),
    ],
)
def test_wrong_arguments_are_named(name: str, given: dict[str, object], said: str) -> None:
    tool = next(tool for tool in QUEUE_TOOLS if tool.name == name)
    with pytest.raises(InvalidInput, match=said):
        tool.read(given)


def test_null_counts_as_missing() -> None:
    look = next(tool for tool in QUEUE_TOOLS if tool.name == "look")
    assert look.read({"queue": None, "id": None}) == look.read({})
