"""What editors see: mypy and pyright accept good programs and those of the docs, and report mistakes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import PAGES, blocks_of

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "tests" / "typing"
BIN = Path(sys.executable).parent
_LINE = re.compile(r"(\S+\.py):(\d+)(?::\d+)?:?(?: -)? error: (.*)")


def mypy(folder: Path) -> list[tuple[str, int, str]]:
    command = [sys.executable, "-m", "mypy", "--no-incremental", "--no-error-summary", "--hide-error-context"]
    options = ["--config-file", "", "--cache-dir=/dev/null", "--disable-error-code=import-untyped"]
    return errors([*command, *options, *map(str, folder.glob("*.py"))], folder)


def pyright(folder: Path) -> list[tuple[str, int, str]]:
    (folder / "pyrightconfig.json").write_text('{"include": ["."], "typeCheckingMode": "standard"}')
    return errors([str(BIN / "basedpyright"), "--pythonpath", sys.executable, "-p", str(folder)], folder)


def errors(command: list[str], folder: Path) -> list[tuple[str, int, str]]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [(Path(file).name, int(line), text) for file, line, text in _LINE.findall(done.stdout)]


@pytest.mark.parametrize("check", [mypy, pyright])
def test_good_programs_pass_and_each_mistake_is_reported(check: object, tmp_path: Path) -> None:
    wrong = set()
    for path in PROGRAMS.glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
        lines = enumerate(path.read_text().splitlines(), 1)
        wrong |= {(path.name, number) for number, line in lines if line.endswith("# wrong")}
    found = check(tmp_path)  # type: ignore[operator]
    assert len(wrong) > 8 and {(file, line) for file, line, _ in found} == wrong, found


@pytest.mark.parametrize("check", [mypy, pyright])
def test_programs_of_the_docs_pass(check: object, tmp_path: Path) -> None:
    count = 0
    for page in PAGES:
        for number, block in enumerate(blocks_of(page)):
            if block.kind == "python":
                (tmp_path / f"{page.stem.replace('-', '_')}_{number}.py").write_text(block.text)
                count += 1
    assert count > 10
    assert check(tmp_path) == []  # type: ignore[operator]
