"""Shows the whole way: a notification of GitHub's, a question, your answer in this terminal, the result.

Real processes, and a GitHub that runs on this machine: nothing leaves it and no token is needed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from github import Github

HERE = Path(__file__).parent
PABAL = str(Path(sys.executable).parent / "pabal")
PATIENCE = 60.0  # seconds for each thing that should happen


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kingdom-") as place, closing(Github()) as github:
        home = Path(place) / "home"
        say(f"A kingdom in {home}, with four generals whose soldiers are scripts")
        prepare(home, github)
        up = subprocess.Popen(
            [PABAL, "kingdom", "up", "--home", str(home)], stdout=subprocess.DEVNULL, env=environment()
        )
        try:
            play(home)
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(60)
    say("The kingdom is down.")


def prepare(home: Path, github: Github) -> None:
    pabal(home, "init")
    repository = home.parent / "repositories/town/relay"
    repository.mkdir(parents=True)
    for name, text in {"horses.txt": "two\n", "couriers.txt": "one\n"}.items():
        (repository / name).write_text(text)
    who = ("-c", "user.name=demo", "-c", "user.email=demo@example.org")
    for command in (("init",), ("add", "."), (*who, "commit", "-m", "first")):
        subprocess.run(
            ["git", *command], cwd=repository, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    configure(home, "system", {"repositories": f"{home.parent}/repositories/{{repo}}"})
    configure(home, "king", {"gate": {"enabled": False}})
    configure(home, "sentinel", {"polling": {"github": {"api": github.address, "interval_seconds": 1}}})
    for general in sorted((HERE / "generals").iterdir()):
        pabal(home, "install-general", str(general))


def play(home: Path) -> None:
    say("GitHub says that somebody wants a review. The sentinel sees it, the King gives it to gen-pr …")
    [question] = until(lambda: documents(home, "questions"), "no question came")
    show(home, "tasks", "--completed")
    say("… whose soldier read the repository and has a question:")
    show(home, "questions")
    answer = input("Your answer, yes or no: ") if sys.stdin.isatty() else "yes"
    show(home, "answer", question["task_id"], answer)
    say("The answer goes to the King, and gen-pr goes on where it was:")
    until(lambda: [event for event in completed(home) if "reply" in event["id"]], "the work did not go on")
    until(lambda: any("✅" in text and "approved" in text for text in told(home)), "nobody was told")
    say("What people were told (with a Slack token it would be a thread there):")
    for text in told(home):
        print(f"  {text}")
    show(home, "run-schedule", "daily-briefing")
    [briefing] = until(lambda: [text for text in told(home) if "completed so far" in text], "no briefing came")
    print(f"  {briefing}")
    show(home, "status")


def pabal(home: Path, *arguments: str) -> str:
    command = [PABAL, "kingdom", *arguments, "--home", str(home)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment()).stdout


def show(home: Path, *arguments: str) -> None:
    print(f"\n$ pabal kingdom {' '.join(arguments)}")
    print(pabal(home, *arguments), end="")


def environment() -> dict[str, str]:
    """Return our variables, without tokens that would let the demo speak to a real Slack."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLACK_", "GITHUB_", "KINGDOM_"))}


def documents(home: Path, *arguments: str) -> list[Any]:
    return [json.loads(line) for line in pabal(home, *arguments, "--json").splitlines()]


def completed(home: Path) -> list[Any]:
    return documents(home, "events", "--completed")


def told(home: Path) -> list[str]:
    """Return what was said to people, in its order."""
    notices = [json.loads(path.read_text()) for path in (home / "queue/messages/sent").glob("msg-*.json")]
    return [notice["content"] for notice in sorted(notices, key=lambda notice: notice["created_at"])]


def configure(home: Path, name: str, document: dict[str, Any]) -> None:
    (home / "config" / f"{name}.yaml").write_text(json.dumps(document))


def until(ask: Callable[[], Any], complaint: str) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := ask()):
        if time.monotonic() > end:
            sys.exit(complaint)
        time.sleep(0.1)
    return found


def say(text: str) -> None:
    print(f"\n— {text}", flush=True)


if __name__ == "__main__":
    main()
