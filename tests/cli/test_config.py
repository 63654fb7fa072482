"""`pabal config check` and `pabal install-service`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import Pabal
from tests.manager.running import Running


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[paths]\ndataRoot = "file"', "paths.dataRoot: {here}/file is not a folder"),
        ('[paths]\nlogRoot = "file/logs"', "paths.logRoot: {here}/file is not a folder"),
        ('[ipc]\nroot = "file"', "ipc.root: {here}/file is not a folder"),
        ('[ipc]\nroot = "open/ipc"', "ipc.root: {here}/open can be written to by everybody: chmod o-w it"),
        ("[ipc]\ngroup = 4321\n[ipc.clients]\na = 1234", "ipc.root: {here}/.pabal is missing: make it with mode 0711"),
        ('[sqlite]\ndbPath = "file"', "store: {here}/file is not a SQLite database"),
        ('[sqlite]\ndbPath = "folder"', "store: {here}/folder "),
        ('backend = "hybrid"\n[sqlite]\ndbPath = "file/x.db"', "sqlite.dbPath: {here}/file is not a folder"),
        ('backend = "hybrid"\n[hybrid]\npayloadRoot = "file"', "hybrid.payloadRoot: {here}/file is not a folder"),
        ('backend = "fs"\n[filesystem]\nroot = "file"', "filesystem.root: {here}/file is not a folder"),
    ],
)
def test_what_up_would_refuse_is_refused_and_nothing_is_made(
    text: str, says: str, pabal: Pabal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o711)
    (tmp_path / "pabal.toml").write_text(text)
    (tmp_path / "file").write_text("a text, and no database " * 50)
    (tmp_path / "folder").mkdir()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    checked = pabal("config", "check")
    assert checked.code == 2 and says.format(here=tmp_path) in checked.err, checked
    assert len(pabal("config", "check", "--json").documents[0]["mistakes"]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "open", "pabal.toml"]
    assert not list((tmp_path / "folder").iterdir()) and not list((tmp_path / "open").iterdir())
    assert pabal("up").code in (2, 6)


def test_a_configuration_in_use_is_no_mistake(pabal: Pabal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    manager = Running(tmp_path)
    try:
        manager.wait_until_up()
        assert pabal("config", "check").code == 0
    finally:
        manager.end()


def test_a_file_that_is_not_there_is_named(pabal: Pabal, tmp_path: Path) -> None:
    ran = pabal("config", "check", str(tmp_path / "nowhere.toml"))
    assert ran.code == 2 and "cannot read" in ran.err


def test_the_unit_runs_up_with_absolute_paths(pabal: Pabal, tmp_path: Path) -> None:
    root = tmp_path / "a 100% root"
    config = tmp_path / "pabal.toml"
    config.write_text("")
    unit = pabal.ok("install-service", "--show", "--root", str(root), "--config", str(config))
    [line] = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert line.endswith(f'pabal up --root "{tmp_path}/a 100%% root" --config {config} --no-gateway')
    assert "Type=notify" in unit and "WatchdogSec=60" in unit and "Restart=always" in unit


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("whose", [(), ("--system", "--user", "root")])
def test_systemd_finds_nothing_wrong_with_the_unit(pabal: Pabal, tmp_path: Path, whose: tuple[str, ...]) -> None:
    (tmp_path / "pabal.service").write_text(pabal.ok("install-service", "--show", "--root", str(tmp_path), *whose))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", tmp_path / "pabal.service"], capture_output=True, text=True, timeout=60
    )
    assert "pabal.service" not in done.stderr, done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_the_unit_of_the_machine_exposes_little(pabal: Pabal, tmp_path: Path) -> None:
    (tmp_path / "pabal.service").write_text(
        pabal.ok("install-service", "--show", "--root", str(tmp_path), "--system", "--user", "nobody")
    )
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(tmp_path / "pabal.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"above 2.0 of 10: {done.stdout}{done.stderr}"


def test_the_unit_of_the_machine_writes_only_its_own_folders(pabal: Pabal, tmp_path: Path) -> None:
    config = tmp_path / "pabal.toml"
    config.write_text(f"""[paths]
dataRoot = '{tmp_path}/data'
logRoot = '{tmp_path}/a log'
[sqlite]
dbPath = '{tmp_path}/elsewhere/q.db'
""")
    unit = pabal.ok("install-service", "--show", "--system", "--user", "pabal", "--config", str(config))
    lines = unit.splitlines()
    assert f'ReadWritePaths="{tmp_path}/a log" {tmp_path}/data {tmp_path}/elsewhere' in lines
    assert {"User=pabal", "ProtectSystem=strict", f"WorkingDirectory={tmp_path}/data"} <= set(lines)
    assert "WantedBy=multi-user.target" in lines
    config.write_text(f"backend = 'hybrid'\n{config.read_text()}[hybrid]\npayloadRoot = '{tmp_path}/large/bodies'\n")
    unit = pabal.ok("install-service", "--show", "--system", "--user", "pabal", "--config", str(config))
    assert f'="{tmp_path}/a log" {tmp_path}/data {tmp_path}/elsewhere {tmp_path}/large\n' in unit


def test_a_unit_of_the_machine_needs_a_user_that_is_there(pabal: Pabal, tmp_path: Path) -> None:
    ran = pabal("install-service", "--system", "--root", str(tmp_path))
    assert ran.code == 2 and "--user NAME" in ran.err
    ran = pabal("install-service", "--system", "--user", "no-such-user", "--root", str(tmp_path))
    assert ran.code == 2 and "useradd --system no-such-user" in ran.err
    assert pabal("install-service", "--user", "ann", "--root", str(tmp_path)).code == 2


def test_it_is_written_where_systemd_looks(pabal: Pabal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    shown = pabal.ok("install-service", "--user", "--root", str(tmp_path / "root"), "--name", "mine")
    unit = tmp_path / "config/systemd/user/mine.service"
    assert f"wrote {unit}" in shown and "systemctl --user enable --now mine" in shown
    assert "ExecStart=" in unit.read_text() and os.stat(unit).st_mode & 0o777 == 0o644
    assert (tmp_path / "root").is_dir()  # the service begins there


def test_without_user_nothing_is_written(pabal: Pabal, tmp_path: Path) -> None:
    ran = pabal("install-service", "--root", str(tmp_path / "root"))
    assert ran.code == 2 and "--user" in ran.err


def test_a_wrong_configuration_is_not_installed(pabal: Pabal, tmp_path: Path) -> None:
    (tmp_path / "pabal.toml").write_text("backend = 1")
    assert pabal("install-service", "--user", "--config", str(tmp_path / "pabal.toml")).code == 2
