"""Passwords and tokens: whatever goes wrong, no error, log line, help page or process list shows one."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import pabal
from pabal.apps.chat.gateway.auth import Tokens, read_secret
from pabal.apps.chat.ledger.ledger import open_ledger
from pabal.apps.ignite.wakes.notify import _local
from pabal.apps.kingdom.envoy.slack import SlackChat, client
from pabal.cli.main import cli
from pabal.clock import SystemClock
from pabal.errors import InvalidConfig, InvalidUrl, PabalError
from pabal.names import shown_url
from pabal.topic_stores.kafka.settings import settings_of
from pabal.watchers.github import GithubClient
from pabal.watchers.http import HttpClient
from tests.cli.command import COMMAND

# Two halves, because a character in the middle may cut a password in two: neither may be seen.
CANARIES = ("s3cr3t", "p4ssw0rd")
A, B = CANARIES
PLAIN = A + B

URLS = [
    *(
        f"{scheme}:{rest}"
        for scheme in ("postgresql", "postgres", "sqlite", "file", "hybrid", "mailbox", "kafka", "redis", "https", "x")
        for rest in (
            f"//u:{A}/{B}@h/db",
            f"//u:{A}@{B}@h/db",
            f"//u:{A}?{B}@h/db",
            f"//u:{A}#{B}@h/db",
            f"//u:{A}:{B}@h/db",
            f"//u:{A}&{B}@h/db",
            f"//u:{A},{B}@h/db",
            f"//u:{A}%zz{B}@h/db",
            f"//u:{A}%00{B}@h/db",
            f"//u:{A}[{B}@h/db",
            f"//u:{A}]{B}@h/db",
            f"//u:{A} {B}@h/db",
            f"//u:{A}\n{B}@h/db",
            f"//u:{A}\\{B}@h/db",
            f"u:{PLAIN}@h/db",
            f"/u:{PLAIN}@h/db",
            f"///u:{PLAIN}@h/db",
            f"//u:{PLAIN}@",
            f"//u:{PLAIN}",
            f"//u:{PLAIN}@h:bad/db",
            f"//u:{PLAIN}@h:99999/db",
            f"//u:{PLAIN}@[::1/db",
            f"//u:{PLAIN}@h/db?nosuch=1",
            f"//h/db?password={A}&{B}",
            f"//h/db?password={A}@{B}",
            f"//h/db?sslmode={PLAIN}",
            f"//h/db?port={PLAIN}",
            f"//h/db?{PLAIN}=1",
            f"//h/db#{PLAIN}",
            f"//[{PLAIN}",
        )
    ),
    f"u:{PLAIN}@h/db",
    f"//u:{PLAIN}@h/db",
    f"host=h user=u password={PLAIN}",
    f"password='{A} {B}' host=h",
    f"host = h password = {A}?{B}",
    f"host=h\tpassword={A}@{B}",
]


@pytest.fixture(autouse=True)
def nothing_seen(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG):
        yield
    printed = capfd.readouterr()
    check(f"{caplog.text}{printed.out}{printed.err}")


def check(text: str) -> None:
    for canary in CANARIES:
        assert canary not in text, f"{canary} is seen in {text!r:.500}"


def without_source(exc: BaseException) -> str:
    """Return the texts of an error and of its causes, as a log shows them, without lines of source."""
    found = []
    link: BaseException | None = exc
    while link is not None:
        found.append(f"{type(link).__name__}: {link}")
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return "\n".join(found)


@pytest.mark.parametrize("opener", [pabal.connect, pabal.connect_topics, open_ledger], ids=lambda each: each.__name__)
def test_no_url_is_shown_with_its_password(opener: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pabal.sql.postgres._PAUSES", (1e9,))  # a server that cannot be reached is not tried again
    seen = 0
    for url in URLS:
        try:
            opener(url).close()
        except PabalError as exc:
            check(without_source(exc))
            seen += 1
    assert seen > len(URLS) * 0.8
    assert not any(canary in name for name in os.listdir(tmp_path) for canary in CANARIES if ":" not in name)


@pytest.mark.parametrize("url", URLS)
def test_a_shown_url_has_no_more_than_its_host(url: str) -> None:
    if url.startswith(("sqlite:", "file:", "hybrid:", "mailbox:")) and "@" not in url:
        return  # a path
    check(shown_url(url))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:jobs.db?busy=1", "'sqlite:jobs.db'"),
        ("sqlite:///var/lib/jobs.db", "'sqlite:///var/lib/jobs.db'"),
        ("postgresql://me:pw@db.example.org:5432/jobs", "'postgresql://db.example.org'"),
        ("postgresql://[::1]:5432/jobs", "'postgresql://[::1]'"),
        ("jobs.db", "'jobs.db'"),
        ("redis://cache", "'redis://cache'"),
    ],
)
def test_a_shown_url_still_says_which_one_it_was(url: str, says: str) -> None:
    assert shown_url(url) == says


def test_no_command_shows_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pabal.sql.postgres._PAUSES", (1e9,))
    for url in URLS:
        commands: list[list[str]] = [["--url", url, "status"], ["topic", "--topics", url, "list"]]
        if not url.startswith(("sqlite:", "file:", "hybrid:", "mailbox:")) and "@" in url or "password" in url:
            commands += [["takeover", url], ["takeover", ".", "--payloads", url], ["restore", url]]
        for arguments in commands:
            ran = CliRunner().invoke(cli, arguments, prog_name="pabal")
            assert ran.exception is None or isinstance(ran.exception, SystemExit), (url, ran.exception)
            check(ran.output)


def test_no_help_page_shows_what_variables_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PABAL_URL", "PABAL_TOPICS", "PABAL_CHAT_DB", "PABAL_CHAT_SECRET", "GITHUB_TOKEN", "SLACK_BOT_TOKEN"):
        monkeypatch.setenv(name, f"postgresql://u:{PLAIN}@h/db")
    pages = 0

    def walk(command: click.Command, path: list[str]) -> None:
        nonlocal pages
        ran = CliRunner().invoke(cli, [*path, "--help"], prog_name="pabal")
        check(ran.output)
        pages += 1
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                walk(inner, [*path, name])

    walk(cli, [])
    assert pages > 80


def test_no_process_of_a_chat_shows_its_secret_or_a_variable(tmp_path: Path) -> None:
    """`ps` shows the arguments of every process to every user."""
    env = {**os.environ, "PABAL_CHAT_SECRET": PLAIN * 3, "PABAL_CHAT_DB": f"postgresql://u:{PLAIN}@h/db"}
    command = [*COMMAND, "chat", "up", "--root", str(tmp_path / "chat"), "--port", "0"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            secret = tmp_path / "chat" / "secret"
            end = time.monotonic() + 60
            children: list[str] = []
            while len(children) < 2 and time.monotonic() < end:
                time.sleep(0.05)
                found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
                children = found.stdout.split()
            assert len(children) == 2
            lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in (*children, str(process.pid))]
            check("".join(lines))
            assert secret.read_text().strip() not in "".join(lines)
        finally:
            process.terminate()
            process.wait(30)


# Tokens


def test_a_broken_token_is_not_named_by_the_client_that_refuses_it() -> None:
    for odd in (f"{A}\n{B}", f"{A}\r\nX: {B}", f"{A}é{B}", f"{A}\0{B}"):
        with pytest.raises(InvalidConfig, match="odd character") as github:
            GithubClient("https://127.0.0.1:1", odd)
        with pytest.raises(InvalidConfig, match="odd character") as jira:
            HttpClient("https://127.0.0.1:1", {}, auth=("me", odd))
        with pytest.raises(InvalidConfig, match="odd character") as slack:
            client(odd, "https://127.0.0.1:1/api/")
        for caught in (github, jira, slack):
            check(without_source(caught.value))


def test_a_server_that_cannot_be_reached_is_named_without_the_token() -> None:
    def ask(api: str) -> None:
        github = GithubClient(api, PLAIN)
        try:
            list(github.pages("/x", now=0.0))
        finally:
            github.close()

    for api in (
        "http://127.0.0.1:1",
        f"https://u:{PLAIN}@127.0.0.1:1",
        f"https://u:{A}/{B}@h",
        "https://[x",
        f"https://h:{PLAIN}",
        f"http://{PLAIN}",
    ):
        try:
            ask(api)
        except PabalError as exc:
            text = without_source(exc)
            check(text.replace(f"http://{PLAIN}", ""))
    with pytest.raises(PabalError) as caught:
        SlackChat(client(PLAIN, "http://127.0.0.1:1/api/")).post("C1", "hello")
    check(without_source(caught.value))


def test_a_webhook_is_named_without_its_token() -> None:
    for url in (f"http://example.org/{PLAIN}", f"http://example.org/?token={PLAIN}", f"http://u:{PLAIN}@example.org/"):
        with pytest.raises(PabalError) as caught:
            _local(url)
        check(without_source(caught.value))


def test_a_secret_of_a_chat_is_never_shown(tmp_path: Path) -> None:
    with pytest.raises(PabalError) as short:
        Tokens(PLAIN.encode(), SystemClock())
    check(without_source(short.value))
    path = tmp_path / "secret"
    path.write_text(PLAIN * 3)
    path.chmod(0o644)
    with pytest.raises(PabalError) as shared:
        read_secret(path)
    check(without_source(shared.value))
    tokens = Tokens(PLAIN.encode() * 3, SystemClock())
    assert PLAIN not in repr(tokens) and tokens.read_login(PLAIN) is None


@pytest.mark.parametrize("line", [PLAIN, f"sasl.mechanisms={PLAIN}", f"sasl.password {PLAIN}", f"ssl.key.pem={PLAIN}"])
def test_a_setting_of_kafka_is_never_shown(tmp_path: Path, line: str) -> None:
    path = tmp_path / "kafka.properties"
    path.write_text(f"security.protocol=SASL_SSL\n{line}\n")
    try:
        pabal.connect_topics(f"kafka://127.0.0.1:1?timeout=1&config={path}").topics()
    except PabalError as exc:
        check(without_source(exc))
    assert not any(canary in repr(settings_of("h", {})) for canary in CANARIES)


def test_server_urls_are_judged_before_a_server_is_asked() -> None:
    """No test of this module waits: a wrong port or option is refused at once, not after the patience of a store."""
    for url in (
        "postgresql://h:bad/db",
        "postgresql://h:0/db",
        "postgresql://h:65536/db",
        "postgresql://h:5432,i:x/db",
        "postgresql://u:p@h:5432x/db",
        "postgresql://[::1]x/db",
        "postgresql://h/db?port=bad",
        "postgresql://127.0.0.1:1/db?sslmode=bad",
        "postgresql://127.0.0.1:1/db?keepalives=bad",
        "postgresql://127.0.0.1:1/db?target_session_attrs=bad",
        "postgresql://127.0.0.1:1/db?nosuch=1",
        "postgresql://127.0.0.1,127.0.0.2/db?port=1,2,3",
        "postgresql:h/db",
    ):
        with pytest.raises(InvalidUrl):
            pabal.connect(url)
