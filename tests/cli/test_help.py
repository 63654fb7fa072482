"""Every command teaches itself and stands in the reference."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from pabal.cli.exits import Exit
from pabal.cli.main import cli
from tests.cli.command import Pabal

REFERENCE = Path(__file__).parent.parent.parent / "docs" / "reference"


def commands(group: click.Group = cli, prefix: str = "pabal") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield f"{prefix} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix} {name}")


ALL = dict(commands())


@pytest.mark.parametrize("name", ALL)
def test_a_command_has_a_summary_an_example_and_explained_options(name: str) -> None:
    command = ALL[name]
    assert command.help
    summary = command.help.splitlines()[0]
    assert summary.endswith(".") and not command.get_short_help_str(66).endswith("...")
    if not isinstance(command, click.Group):
        assert "Example" in command.help and f"{name}" in command.help.replace(f"| {name}", name)
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.help and param.help.endswith("."), f"{name} {param.opts}"


@pytest.mark.parametrize("name", ALL)
def test_help_fits_80_columns(pabal: Pabal, name: str) -> None:
    shown = pabal.ok(*name.split()[1:], "--help")
    assert max(map(len, shown.splitlines())) <= 80
    assert shown == pabal.ok(*name.split()[1:], "-h")
    listed = shown.splitlines()[1:] if isinstance(ALL[name], click.Group) else []
    assert [line for line in listed if line.endswith("...")] == [], "a summary is cut"


@pytest.mark.parametrize("name", ALL)
def test_a_command_and_its_options_stand_in_the_reference(name: str) -> None:
    heading = f"### {name}\n"
    page = "\n".join(path.read_text() for path in sorted(REFERENCE.glob("*.md")))
    assert heading in page
    section = page.split(heading)[1].split("\n### ")[0].split("\n## ")[0]
    for param in ALL[name].params:
        if isinstance(param, click.Option) and param.name != "url":
            assert all(f"`{text}" in section for text in param.opts), f"{name} {param.opts}"


def test_every_exit_code_stands_in_the_reference() -> None:
    page = (REFERENCE / "cli.md").read_text()
    for code in Exit:
        assert f"| {code.value} |" in page, code


def test_the_version_is_that_of_the_package(pabal: Pabal) -> None:
    assert pabal.ok("--version") == f"pabal {version('pabal')}"


def test_the_group_lists_every_command(pabal: Pabal) -> None:
    shown = pabal.ok("--help")
    for name in ALL:
        assert f"  {name.split()[1]} " in shown
