"""The documentation is true: its programs run, its commands print what it shows, its links lead somewhere.

In a `console` block a line that begins with `$ ` is run, in one folder per page, and what follows must be printed;
`…` stands for anything. A `python` block is run as a program in the same folder. A block that begins with a comment of
a file's name is that file.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.gateway.conftest import Running, gateway

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FILE = re.compile(r"# ([\w-]+\.\w+)\n")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    kind: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text())]


def runnable(page: Path) -> bool:
    return any(block.kind in {"console", "python"} for block in blocks_of(page))


def commands_of(block: Block) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        while command.endswith("\\"):
            more, _, output = output.partition("\n")
            command = f"{command[:-1]}{more}"
        found.append((command, output))
    return found


def matches(shown: str, printed: str) -> bool:
    # How wide a column is depends on what stands in it, and so on how long the commands before it took.
    shown, printed = (re.sub(" {2,}", "  ", text.strip()) for text in (shown, printed))
    pattern = ".*".join(re.escape(part) for part in re.split(" *… *", shown))
    return re.fullmatch(pattern, printed, re.S) is not None


def run(arguments: list[str], folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> str:
    environment = {
        **more,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "COLUMNS": "120",
    }
    done = subprocess.run(
        arguments,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        text=True,
    )
    assert done.returncode == 0, f"{arguments} exited {done.returncode}:\n{done.stdout}"
    return done.stdout


def stop_managers(folder: Path) -> None:
    """End the managers that a page started and did not stop, because one of its commands failed."""
    for heartbeat in folder.rglob("manager.heartbeat"):
        with suppress(ProcessLookupError):
            os.kill(json.loads(heartbeat.read_text())["pid"], signal.SIGKILL)


@pytest.fixture
def sqs_of_a_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway at a free port, where a page names the usual one."""
    with gateway("memory:", tmp_path_factory.mktemp("gateway") / "log") as running:
        yield running


@pytest.mark.parametrize(
    "page", [page for page in PAGES if runnable(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_what_the_page_shows_really_runs(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    more: dict[str, str] = {}
    if "postgresql:///" in page.read_text():
        more = request.getfixturevalue("postgres").environment
    if "AWS_ENDPOINT_URL_SQS=http://127.0.0.1:9324" in page.read_text():
        running = request.getfixturevalue("sqs_of_a_page")
        more |= {"AWS_ENDPOINT_URL_SQS": running.address, "AWS_DEFAULT_REGION": "us-east-1"}
        more |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
    request.addfinalizer(lambda: stop_managers(tmp_path))
    for block in blocks_of(page):
        if block.kind == "console":
            for command, shown in commands_of(block):
                printed = run(["bash", "-c", command], tmp_path, more)
                assert matches(shown, printed), f"$ {command}\nshown:\n{shown}\nprinted:\n{printed}"
        elif name := FILE.match(block.text):
            (tmp_path / name[1]).write_text(block.text)
        elif block.kind == "python":
            (tmp_path / "example.py").write_text(block.text)
            run([sys.executable, "example.py"], tmp_path, more)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_the_checker_of_pages_finds_what_is_wrong(tmp_path: Path) -> None:
    assert commands_of(Block("console", "$ a \\\n  b\nout\n$ c\n")) == [("a   b", "out\n"), ("c", "")]
    assert matches("id …-7 done\n", "id 0198-7 done")
    assert not matches("done\n", "undone")
    with pytest.raises(AssertionError, match="exited 3"):
        run(["bash", "-c", "exit 3"], tmp_path)


def test_every_test_that_a_page_names_exists() -> None:
    named = {found for page in PAGES for found in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", page.read_text())}
    assert len(named) > 10
    for path, name in named:
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), f"{path}::{name}"


def test_the_how_to_counts_the_dependencies() -> None:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert f"| dependencies | {len(found)} packages" in (ROOT / "docs/howto/agents.md").read_text()


def test_every_guarantee_is_documented_and_tested() -> None:
    guarantees = (ROOT / "docs" / "guarantees.md").read_text()
    suite = "".join(path.read_text() for path in (ROOT / "src" / "pabal" / "testing").glob("*.py"))
    crash = "".join(path.read_text() for path in (ROOT / "tests" / "crash").glob("*.py"))
    for number in range(1, 12):
        assert f"**G{number} " in guarantees
        assert re.search(rf"def test_g{number}_", suite + crash), f"G{number} has no test of its number"


def test_every_guarantee_of_topics_is_documented_and_tested() -> None:
    guarantees = (ROOT / "docs" / "guarantees.md").read_text()
    suite = "".join(path.read_text() for path in (ROOT / "src" / "pabal" / "testing").glob("topic_*.py"))
    for number in range(1, 12):
        assert f"**T{number} " in guarantees
        assert re.search(rf"def test_t{number}_", suite), f"T{number} has no test of its number"


def test_every_error_is_documented() -> None:
    from pabal import errors
    from pabal.apps.chat import errors as chat
    from pabal.apps.ignite import errors as ignite
    from pabal.apps.kingdom import errors as kingdom

    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    for module in (errors, chat, ignite, kingdom):
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, errors.PabalError):
                assert f"`{name}`" in page, name


def test_every_policy_field_is_documented_by_its_python_and_its_json_name() -> None:
    from msgspec.structs import FieldInfo, fields

    from pabal.policy.policy import DeadLetterPolicy, Policy, RetryPolicy

    def shown(field: FieldInfo, python: str = "", json: str = "") -> str:
        return f"| `{python}{field.name}` | `{json}{field.encode_name}` |"

    rows = [shown(field) for field in fields(Policy)]
    rows += [shown(field, "retry.", "retry.") for field in fields(RetryPolicy)]
    rows += [shown(field, "dead_letters.", "dlq.") for field in fields(DeadLetterPolicy)]
    page = (ROOT / "docs" / "reference" / "policy.md").read_text()
    assert [row for row in rows if row not in page] == []
