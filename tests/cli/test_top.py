"""`pabal top` in a real terminal: tmux shows what a person would see."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pabal
from pabal.cli.text import width
from pabal.cli.top import KEYS
from tests.cli.command import Pabal
from tests.cli.screen import TOP, Screen, row
from tests.services.postgres import PostgresServer, running
from tests.waiting import until

DOCS = Path(__file__).parents[2] / "docs" / "howto" / "dashboard.md"


@pytest.fixture
def open_screen(tmp_path: Path, pabal: Pabal) -> Iterator[Callable[..., Screen]]:
    opened: list[Screen] = []

    def open_one(**env: str) -> Screen:
        base = {name: value for name, value in pabal.env.items() if name not in ("TMUX", "NO_COLOR")}
        screen = Screen(tmp_path, {**base, "LC_ALL": "C.UTF-8", **env})
        opened.append(screen)
        return screen

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture
def shop(pabal: Pabal) -> Iterator[pabal.Connection]:
    """A store in which two queues need attention."""
    with pabal.connect(consumer="shop-1") as mq:
        emails = mq.queue("emails")
        emails.create(_once())
        for number in range(5):
            emails.publish({"to": "ann@example.org", "order": number}, id=f"order-{number}", type="email.send")
        for delivery in emails.lease(2):
            delivery.nack(reason="SMTP 421: mailbox busy")
        emails.lease()
        mq.queue("alpha").publish_many(range(7))
        mq.queue("reports").publish("monthly", delay=3600)
        mq.queue("zeta").publish(1)
        mq.queue("zeta").pause()
        yield mq


def _once() -> pabal.Policy:
    return pabal.Policy(retry=pabal.RetryPolicy(limit=1))


def test_it_shows_what_status_says_and_what_needs_attention_first(
    shop: pabal.Connection, open_screen: Callable[..., Screen], pabal: Pabal
) -> None:
    screen = open_screen()
    screen.start(shows="zeta")
    text = screen.until("zeta", "sort:")  # the last line is drawn last
    names = [
        line[2:].split()[0] for line in text.split("\n") if re.match(r"[ >][ !](emails|alpha|reports|zeta) ", line)
    ]
    assert names == ["emails", "zeta", "alpha", "reports"]
    for document in map(json.loads, pabal.ok("status", "--json").splitlines()):
        counts = [str(document[name] or "·") for name in ("ready", "inflight", "delayed", "dead")]
        assert row(text, document["queue"])[1:5] == counts
    assert "4 queues  2 need attention" in text and "emails  2 dead" in text and "1 consumer" in text
    shop.queue("alpha").publish_many(range(1000))
    screen.until("1007")
    screen.press("s")  # by name
    screen.press("s")  # by ready
    screen.until("sort: ready")
    screen.press("Home")
    screen.until(">", "alpha")


def test_every_documented_key_does_what_the_page_says(
    shop: pabal.Connection, open_screen: Callable[..., Screen]
) -> None:
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \|$", DOCS.read_text(), re.M)
    assert [(keys.replace("`", ""), words) for keys, words in rows] == list(KEYS)
    screen = open_screen()
    screen.start(shows=">!emails")
    for key, chosen in (("Down", ">!zeta"), ("j", "> alpha"), ("Up", ">!zeta"), ("k", ">!emails")):
        screen.press(key)
        screen.until(chosen)
    for key, chosen in (("End", "> reports"), ("Home", ">!emails"), ("PageDown", "> reports"), ("PageUp", ">!emails")):
        screen.press(key)
        screen.until(chosen)
    for sort in ("queue", "ready", "in flight", "dead", "oldest", "in", "out", "attention"):
        screen.press("s")
        screen.until(f"sort: {sort}")
    screen.press("/")
    screen.type("ALX")
    screen.press("BSpace")
    screen.until("/AL_", "alpha", without="emails")
    screen.press("Enter")
    screen.until("/AL  ", without="/AL_")
    screen.press("Escape")
    screen.until("emails")
    screen.press("Home")
    screen.until(">!emails")
    screen.press("?")
    for keys, words in KEYS:
        screen.until(keys, words.split()[0])
    screen.press("Escape")
    screen.until(">!emails")
    screen.press("p")
    screen.until("Pause emails?")
    screen.press("n")
    screen.until("sort:", without="Pause emails?")
    assert shop.queue("emails").paused is False
    screen.press("p")
    screen.press("y")
    screen.until("emails is paused")
    assert shop.queue("emails").paused is True
    screen.press("p")
    screen.until("Let emails run again?")
    screen.press("y")
    screen.until("emails is running")
    screen.press("Enter")
    screen.until("[ready 2]", "> order-3")
    screen.press("Tab")
    screen.until("[in flight 1]", "> order-2")
    screen.press("Tab", "Tab")
    screen.until("[dead 2]", "RETRY_LIMIT")
    screen.press("BTab", "BTab")
    screen.until("[in flight 1]", "> order-2")
    screen.press("Tab", "Tab")
    screen.until("> order-0")
    screen.press("Down")
    screen.until("> order-1")
    shop.queue("emails").revive(["order-1"])
    screen.press("r")
    screen.until("[dead 1]", "> order-0")
    screen.press("Enter")
    screen.until("SMTP 421: mailbox busy", '"order": 0', "email.send")
    screen.press("Escape")
    screen.until("> order-0")
    screen.press("Escape")
    screen.until(">!emails")
    screen.press("q")
    screen.until("prompt>", without="pabal top")


def test_hostile_texts_are_escaped_and_wide_letters_keep_their_columns(
    pabal: Pabal, open_screen: Callable[..., Screen]
) -> None:
    with pabal.connect() as mq:
        queue = mq.queue("jobs")
        hostile = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b1m \u202eabc\u200b\r\n"
        queue.publish({"to": "健司", hostile: hostile}, id="1", type="\u202eabc\u200b")
        queue.publish({"to": "김민아", "letters": "한글 日本語 कि é"}, id="2", type="한국어")
        queue.publish(b"\x00\x1b[2Jbytes", id="3", type="plain")
        queue.publish({"large": "x" * 300_000}, id="4")
    screen = open_screen()
    screen.start(shows="> jobs")
    screen.press("Enter")
    text = screen.until("plain", "김민아")
    heads, *rows = [line for line in text.split("\n") if line[:2] in ("> ", "  ") and line.strip()][:5]
    at = heads.index("BODY")
    for line in rows:
        cut = 0
        while width(line[:cut]) < at:
            cut += 1
        assert width(line[:cut]) == at and line[cut - 1] == " " != line[cut], line
    assert "\\u202eabc" in text and "한국어" in text
    for id, words in (
        ("1", "\\u202eabc\\u200b"),
        ("2", "日本語"),
        ("3", "00 1b 5b 32 4a"),
        ("4", "the body has 300,0"),
    ):
        screen.press("Enter")
        screen.until(f"id         {id}")
        if id == "4":
            screen.press("End")
        screen.until(words)
        screen.press("Escape")
        screen.until("[ready 4]")
        screen.press("Down")
    assert (
        "owned"
        not in subprocess.run(
            ["tmux", "-S", screen._socket, "display-message", "-p", "#{pane_title}"], capture_output=True, text=True
        ).stdout
    )


def test_it_fits_every_size(shop: pabal.Connection, open_screen: Callable[..., Screen]) -> None:
    screen = open_screen()
    screen.start(shows=">!emails")
    for columns, rows, words in (
        (200, 50, "LAST 5 MIN"),
        (40, 10, "DEAD"),
        (20, 5, "emails"),
        (5, 2, "4 qu"),
        (80, 24, "OUT/S"),
    ):
        screen.resize(columns, rows)
        screen.until(words[:columns])
        assert max(width(line) for line in screen.lines()) <= columns
    screen.press("Enter")
    screen.until("> order-3")
    screen.press("Enter")
    screen.until("id         order-3")
    screen.resize(30, 8)
    screen.press("End")
    screen.until('"order": 3')


@pytest.mark.parametrize("end", ["q", "C-c", "TERM", "HUP", "error"])
def test_the_terminal_is_as_it_was_however_it_ends(
    shop: pabal.Connection, open_screen: Callable[..., Screen], tmp_path: Path, end: str
) -> None:
    screen = open_screen()
    command = TOP
    if end == "error":
        script = tmp_path / "broken.py"
        script.write_text(
            "import pabal.cli.top as top, pabal.cli.main as main\n"
            "shown, count = top.App.lines, []\n"
            "def lines(app, *size):\n"
            "    count.append(1)\n"
            "    if app.overview['at'] and len(count) > 5: raise RuntimeError('a defect')\n"
            "    return shown(app, *size)\n"
            "top.App.lines = lines\nmain.main()\n"
        )
        command = f"{sys.executable} {script} top"
    screen.type("stty -g > before")
    screen.press("Enter")
    until(lambda: (tmp_path / "before").is_file() and (tmp_path / "before").read_text())
    screen.type(f'echo still here; {command}; echo fin""ished $?; stty -g > after')
    screen.press("Enter")
    if end != "error":
        screen.until(">!emails")
        assert screen.is_other() and not screen.has_cursor()
        if end in ("q", "C-c"):
            screen.press(end)
        else:
            os.kill(screen.pid(), getattr(signal, f"SIG{end}"))
    code = {"TERM": 143, "HUP": 129, "error": 1}.get(end, 0)
    screen.until(f"finished {code}", "a defect" if end == "error" else "still here")
    until(lambda: (tmp_path / "after").is_file() and (tmp_path / "after").read_text())
    assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text()
    assert not screen.is_other() and screen.has_cursor()


def test_ctrl_z_gives_the_terminal_back_and_it_goes_on(
    shop: pabal.Connection, open_screen: Callable[..., Screen]
) -> None:
    screen = open_screen()
    screen.type("set -m")
    screen.press("Enter")
    screen.start(shows=">!emails")
    screen.press("C-z")
    until(lambda: not screen.is_other() and screen.has_cursor())
    screen.until("prompt>")
    shop.queue("alpha").publish(1)
    screen.type("fg")
    screen.press("Enter")
    until(screen.is_other)
    assert row(screen.until("alpha", "pabal top"), "emails")
    screen.press("q")
    until(lambda: not screen.is_other())


@pytest.mark.parametrize(
    ("env", "coloured", "styled"), [({}, 1, 1), ({"NO_COLOR": "1"}, 0, 1), ({"TERM": "dumb"}, 0, 0)]
)
def test_colours_are_left_out_where_nobody_wants_them(
    shop: pabal.Connection, open_screen: Callable[..., Screen], env: dict[str, str], coloured: int, styled: int
) -> None:
    screen = open_screen()
    assignments = " ".join(f"{name}={value}" for name, value in env.items())
    screen.start(f"env {assignments} {TOP}", shows=">!emails")
    text = "\n".join(screen.lines(styled=True))
    codes = {code for found in re.findall(r"\x1b\[([0-9;]*)m", text) for code in found.split(";")}
    assert bool({code for code in codes if re.fullmatch(r"[349]\d", code) and code not in ("39", "49")}) == coloured
    assert bool(codes & {"1", "7"}) == styled


def test_without_a_terminal_it_names_the_command_that_prints_once(pabal: Pabal) -> None:
    ran = pabal.run("top")
    assert ran.code == 2 and "`pabal status` prints the figures once" in ran.err and "\x1b" not in ran.out + ran.err


def test_a_missing_store_is_an_error_before_anything_is_drawn(pabal: Pabal, open_screen: Callable[..., Screen]) -> None:
    screen = open_screen()
    screen.start(f'{TOP}; echo fin""ished $?', shows="finished 3")
    assert not screen.is_other()


@pytest.mark.parametrize("outage", ["hung", "gone"])
def test_a_server_that_stops_is_shown_and_heals_by_itself(
    postgres: PostgresServer, pabal: Pabal, open_screen: Callable[..., Screen], outage: str
) -> None:
    with running() as server:
        pabal.url = pabal.env["PABAL_URL"] = server.url
        with pabal.connect() as mq:
            mq.queue("jobs").publish_many(range(12))
        screen = open_screen()
        screen.start(shows="> jobs")
        server.hang() if outage == "hung" else server.stop()
        screen.until("! ", "> jobs", "12")  # the figures of before
        screen.press("?")
        screen.until("show these keys")  # keys work meanwhile
        screen.press("Escape")
        server.resume() if outage == "hung" else server.start()
        with pabal.connect() as mq:
            mq.queue("jobs").publish(1)
        screen.until("13", without="! ")
        screen.press("q")
        until(lambda: not screen.is_other())


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_store_that_is_moved_away_is_shown_and_one_in_its_place_too(
    pabal: Pabal, open_screen: Callable[..., Screen], tmp_path: Path, kind: str
) -> None:
    (tmp_path / "here").mkdir()
    pabal.url = pabal.env["PABAL_URL"] = f"{kind}:{tmp_path}/here/store"
    with pabal.connect() as mq:
        mq.queue("first").publish(1)
    screen = open_screen()
    screen.start(shows="> first")
    (tmp_path / "here").rename(tmp_path / "there")
    screen.until("! StoreMissing", "> first")
    (tmp_path / "here").mkdir()
    with pabal.connect() as mq:
        mq.queue("second").publish(1)
    screen.until("> second", without="!")
    assert "first" not in screen.text()
