"""The page of the protocol is true: its requests get the answers that it shows, and its script runs."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pabal.clock import SystemClock
from pabal.mailbox.commands import COMMANDS
from pabal.mailbox.protocol import ALIASES, Code
from tests.mailbox.room import Room
from tests.openers import OPENERS

PAGE = (Path(__file__).parent.parent.parent / "docs" / "reference" / "mailbox.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path / "ipc", OPENERS["sqlite"].open(tmp_path, SystemClock()))
    yield made
    made.close()


def fits(shown: Any, found: Any) -> bool:
    """Say whether what was found is what is shown, where … stands for anything."""
    if isinstance(shown, str) and "…" in shown:
        return shown == "…" or re.fullmatch(".*".join(map(re.escape, shown.split("…"))), str(found)) is not None
    if isinstance(shown, dict) and isinstance(found, dict):
        return shown.keys() == found.keys() and all(fits(shown[name], found[name]) for name in shown)
    if isinstance(shown, list) and isinstance(found, list):
        return len(shown) == len(found) and all(map(fits, shown, found))
    return bool(shown == found)


def filled(request: Any, lease: dict[str, Any]) -> Any:
    """Put the lease that was got before where the page says …."""
    if isinstance(request, list):
        return [filled(each, lease) for each in request]
    payload = {name: lease[name] if value == "…" else value for name, value in request["payload"].items()}
    return request | {"payload": payload, "timestampMs": round(time.time() * 1000)}


def test_every_request_gets_the_answer_that_is_shown(room: Room) -> None:
    documents = [json.loads(text) for kind, text in BLOCKS if kind == "json"]
    assert len(documents) % 2 == 0 and len(documents) >= 10
    lease: dict[str, Any] = {}
    for request, shown in zip(documents[::2], documents[1::2], strict=True):
        first = request[0] if isinstance(request, list) else request
        name = room.drop(filled(request, lease), f"{first['requestId']}.json")
        room.server.step()
        found = room.answer(name, first["clientId"])
        assert fits(shown, found), f"shown:\n{shown}\nfound:\n{found}"
        if first["command"] == "consume":
            lease = found["data"]["lease"]


def test_the_script_runs(room: Room, tmp_path: Path) -> None:
    [script] = [text for kind, text in BLOCKS if kind == "sh"]
    room.serve()
    done = subprocess.run(["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, timeout=20, check=True)
    assert json.loads(done.stdout)["ok"]


def test_every_command_by_all_its_names_and_every_code_is_on_the_page() -> None:
    for name in [*COMMANDS, *ALIASES, *Code]:
        assert f"`{name}`" in PAGE, name


def test_the_checker_of_answers_finds_what_is_wrong() -> None:
    assert fits({"a": ["…", "x.…"]}, {"a": [5, "x.y"]})
    assert not fits({"a": "x.…"}, {"a": "y.x"}) and not fits({"a": 1}, {"a": 1, "b": 2}) and not fits([1], [1, 2])
