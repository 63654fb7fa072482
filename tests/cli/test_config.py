"""`pabal config check` and `pabal install-service`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import Pabal


def test_without_a_file_the_defaults_are_shown(pabal: Pabal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    shown = pabal.ok("config", "check").splitlines()
    assert shown == [
        "source   the command line",
        "nodeId   local-01",
        "backend  sqlite",
        f"root     {tmp_path}/.pabal",
        f"mailbox  {tmp_path}/.pabal/ipc",
        f"store    sqlite://{tmp_path}/.pabal/pabal.db",
        "log      stderr",
        "queues   any",
    ]
    assert list(tmp_path.iterdir()) == [], "looking makes nothing"


def test_a_good_file_is_shown_as_it_will_be_used(pabal: Pabal, tmp_path: Path) -> None:
    (tmp_path / "pabal.toml").write_text('backend = "hybrid"\n[[queues]]\nname = "jobs"\npolicy.retry.limit = 2\n')
    [found] = pabal("config", "check", str(tmp_path / "pabal.toml"), "--json").documents
    assert found["backend"] == "hybrid" and found["queues"]["jobs"]["retry"]["limit"] == 2
    [moved] = pabal("config", "check", str(tmp_path / "pabal.toml"), "--root", "/srv/pabal", "--json").documents
    assert moved["mailbox"] == "/srv/pabal/ipc"


def test_every_mistake_is_printed_and_it_ends_with_2(pabal: Pabal, tmp_path: Path) -> None:
    path = tmp_path / "main_mq_configuration.json"
    path.write_text('{"backend": "oracle", "colour": "red\\u001b[31m"}')
    ran = pabal("config", "check", str(path))
    assert ran.code == 2 and ran.out == ""
    assert ran.err.splitlines()[0] == f"pabal: InvalidConfig: 2 mistakes in {path}"
    assert len(ran.err.splitlines()) == 3 and "\x1b" not in ran.err
    as_json = pabal("config", "check", str(path), "--json")
    assert as_json.code == 2 and len(as_json.documents[0]["mistakes"]) == 2


def test_a_file_that_is_not_there_is_named(pabal: Pabal, tmp_path: Path) -> None:
    ran = pabal("config", "check", str(tmp_path / "nowhere.toml"))
    assert ran.code == 2 and "cannot read" in ran.err


def test_the_unit_runs_up_with_absolute_paths(pabal: Pabal, tmp_path: Path) -> None:
    root = tmp_path / "a 100% root"
    config = tmp_path / "pabal.toml"
    config.write_text("")
    unit = pabal.ok("install-service", "--show", "--root", str(root), "--config", str(config))
    [line] = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert line.endswith(f'pabal up --root "{tmp_path}/a 100%% root" --config {config}')
    assert "Type=notify" in unit and "WatchdogSec=60" in unit and "Restart=always" in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(pabal: Pabal, tmp_path: Path) -> None:
    unit = pabal.ok("install-service", "--show", "--root", str(tmp_path / "root"))
    (tmp_path / "pabal.service").write_text(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", tmp_path / "pabal.service"], capture_output=True, text=True, timeout=60
    )
    assert "pabal.service" not in done.stderr, done.stderr


def test_it_is_written_where_systemd_looks(pabal: Pabal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    shown = pabal.ok("install-service", "--user", "--root", str(tmp_path / "root"), "--name", "mine")
    unit = tmp_path / "config/systemd/user/mine.service"
    assert f"wrote {unit}" in shown and "systemctl --user enable --now mine" in shown
    assert "ExecStart=" in unit.read_text() and os.stat(unit).st_mode & 0o777 == 0o644


def test_without_user_nothing_is_written(pabal: Pabal, tmp_path: Path) -> None:
    ran = pabal("install-service", "--root", str(tmp_path / "root"))
    assert ran.code == 2 and "--user" in ran.err


def test_a_wrong_configuration_is_not_installed(pabal: Pabal, tmp_path: Path) -> None:
    (tmp_path / "pabal.toml").write_text("backend = 1")
    assert pabal("install-service", "--user", "--config", str(tmp_path / "pabal.toml")).code == 2
