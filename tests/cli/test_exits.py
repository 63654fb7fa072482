"""One line and one code for every way of failing; the store is found, and not made by looking."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from pabal import State, connect, errors
from pabal.cli.exits import Exit, NotFound, complain
from tests.cli.command import COMMAND, Pabal

READING = [
    ["status"], ["status", "jobs"], ["queues"], ["peek", "jobs"], ["show", "x"], ["tail", "jobs"], ["list-dlq", "jobs"],
    ["reprocess", "jobs", "--all"], ["purge", "jobs", "--state", "dead", "--yes"], ["policy", "show", "jobs"],
    ["pause", "jobs"], ["resume", "jobs"], ["doctor"], ["ack", "a/b/c"], ["nack", "a/b/c"],
    ["extend-lease", "a/b/c", "5"], ["consume", "jobs"], ["consume", "jobs", "--exec", "true", "--wait", "0"],
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidName("x"), 2),
        (errors.TooLarge("x"), 2),
        (click.UsageError("x"), 2),
        (click.FileError("x"), 2),
        (errors.QueueUnknown("x"), 3),
        (NotFound("x"), 3),
        (errors.LeaseLost("x"), 4),
        (errors.QueueFull("x"), 5),
        (errors.StoreFull("x"), 5),
        (errors.StoreFailed("x"), 6),
        (errors.StoreRefused("x"), 6),
        (errors.StoreClosed("x"), 6),
        (errors.Uncertain("x", ("a",)), 6),
        (errors.DecodeError("x", b"secret"), 6),
        (OSError(5, "x"), 6),
        (errors.ExtraMissing("x"), 7),
        (click.Abort(), 130),
    ],
)
def test_each_error_has_its_code(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert complain(error) == code
    shown = capsys.readouterr().err
    assert shown.count("\n") == (0 if isinstance(error, click.Abort) else 1)
    assert "secret" not in shown


def test_every_error_of_the_library_has_a_code() -> None:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.PabalError):
            arguments: list[Any] = ["x", b""] if value is errors.DecodeError else ["x"]
            if value is errors.Refused:
                arguments = ["CODE", "x"]
            assert complain(value(*arguments)) in set(Exit)


def test_an_uncertain_publish_says_how_to_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    complain(errors.Uncertain("the disk did not answer", ("m-1",)))
    assert capsys.readouterr().err == "pabal: Uncertain: the disk did not answer; repeat with --id m-1\n"


@pytest.mark.parametrize("args", READING, ids=" ".join)
def test_looking_for_a_store_that_is_not_there_makes_none(tmp_path: Path, args: list[str]) -> None:
    for url in (f"sqlite:{tmp_path}/a/b.db", f"file:{tmp_path}/spool", f"hybrid:{tmp_path}/hybrid"):
        ran = Pabal(url, tmp_path)(*args)
        assert ran.code == 3
        assert ran.err.startswith("pabal: StoreMissing: no store at ") and ran.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_group_alone_prints_its_help(pabal: Pabal) -> None:
    assert "Dead letters:" in pabal.ok()
    assert "Usage: pabal policy" in pabal.ok("policy")


@pytest.mark.parametrize("args", [["nonsense"], ["publish"], ["policy", "nonsense"], ["--url"], ["ack"]])
def test_wrong_usage_gives_2_and_points_to_help(pabal: Pabal, args: list[str]) -> None:
    ran = pabal(*args)
    assert ran.code == 2
    assert ran.err.startswith("pabal: UsageError: ") and ran.err.count("\n") == 1
    assert ran.err.endswith("--help)\n")


@pytest.mark.parametrize("url", ["nonsense", "redis://x", "sqlite://host/x.db", "sqlite:", "", "file:x?y=1"])
def test_a_bad_url_is_explained(pabal: Pabal, url: str) -> None:
    ran = pabal("--url", url, "queues")
    assert (ran.code, ran.err.split(":")[1]) == (2, " InvalidUrl")


def test_the_url_is_taken_before_and_after_the_command(pabal: Pabal, tmp_path: Path) -> None:
    other = f"sqlite:{tmp_path / 'other.db'}"
    pabal.ok("publish", "here", "1")
    pabal.ok("--url", other, "publish", "there", "1")
    assert pabal.ok("queues") == "here"
    assert pabal.ok("queues", "--url", other) == "there"
    assert pabal.ok("--url", "sqlite:nowhere", "queues", "--url", other) == "there"
    assert pabal.ok("policy", "--url", other, "show", "there", "--json")
    assert pabal.ok("policy", "show", "there", "--json", "--url", other)


def test_by_default_the_store_is_under_the_current_folder(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PABAL_URL"}

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *args], cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )

    assert run("publish", "jobs", "1").returncode == 0
    assert (tmp_path / ".pabal" / "pabal.db").exists()
    assert (tmp_path / ".pabal").stat().st_mode & 0o77 == 0
    assert run("queues").stdout == "jobs\n"


def test_a_place_that_cannot_be_a_store_gives_6(pabal: Pabal, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database, and it is long enough to be one" * 100)
    for url in (f"sqlite:{tmp_path / 'text.db'}", f"file:{tmp_path / 'text.db'}", f"sqlite:{tmp_path}"):
        ran = pabal("--url", url, "publish", "jobs", "1")
        assert ran.code == 6, ran
        assert ran.err.startswith("pabal: Store") and ran.err.count("\n") == 1


def test_a_reader_that_goes_away_is_no_error_message(pabal: Pabal) -> None:
    for number in range(30):
        pabal.ok("publish", f"q{number}", "1")
    process = pabal.start("queues", stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=30) == 141
    assert process.stderr.read() == ""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_trouble(closed: str, tmp_path: Path) -> None:
    commands = Path(sys.executable).parent
    at = f"--url sqlite:{tmp_path}/x.db"
    for line in (
        f"{commands}/pabal {at} publish jobs 1",
        f"{commands}/yirangmq {at} publish --queue jobs --message 1",
        f"{commands}/pabal {at} peek jobs",
    ):
        done = subprocess.run(["bash", "-c", f"{line} {closed}"], capture_output=True, text=True)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    with connect(f"sqlite:{tmp_path}/x.db") as mq:
        assert mq.queue("jobs").counts()[State.READY] == 2


def test_the_log_of_the_library_repeats_nothing(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [f"{Path(sys.executable).parent}/yirangmq", "--url", f"sqlite:{tmp_path}/x.db", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True)

    key = run("publish", "--queue", "jobs", "--message", "1").stdout.strip()
    run("consume", "--queue", "jobs")
    assert run("nack", "--message-key", key, "--force").stderr == ""
