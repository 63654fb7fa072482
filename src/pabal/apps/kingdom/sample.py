"""What `pabal kingdom init` writes: configuration files with every key as a comment, and a sample general."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pabal import jsontext
from pabal.apps.kingdom.chamberlain import settings as chamberlain
from pabal.apps.kingdom.envoy import settings as envoy
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.manifests import FOLDER, MANIFEST, Manifest, install, read_manifest
from pabal.apps.kingdom.sentinel import settings as sentinel
from pabal.durable import make_dirs, replace_whole, translated

_HEAD = """\
# {what}
# Every key with its default. Take the first "# " of a line away to change it, and those of the keys above it.
# What each means: docs/reference/kingdom.md.
"""


def settings_text(what: str, settings: msgspec.Struct | dict[str, Any]) -> str:
    """Return a configuration file in which every key stands as a comment."""
    lines = _lines(settings if isinstance(settings, dict) else msgspec.to_builtins(settings), 0)
    return _HEAD.format(what=what) + "\n" + "".join(f"# {line}\n" for line in lines)


def _lines(values: dict[str, Any], depth: int) -> list[str]:
    found: list[str] = []
    for name, value in values.items():
        if isinstance(value, dict) and value:
            found += [f"{'  ' * depth}{name}:", *_lines(value, depth + 1)]
        else:
            found.append(f"{'  ' * depth}{name}: {jsontext.encode(value).decode()}")
    return found


def write_settings(root: Path) -> None:
    """Write the configuration files of the roles. Files that exist stay as they are."""
    watchers = {
        "github": msgspec.to_builtins(sentinel.GithubSettings()),
        "jira": msgspec.to_builtins(sentinel.JiraSettings(url="https://town.atlassian.net")),
        "any-name": msgspec.to_builtins(sentinel.CommandSettings(command=("./look.sh",))),
    }
    files = {
        envoy.FILE: settings_text("How the envoy reaches people.", envoy.Settings()),
        chamberlain.FILE: settings_text("Thresholds, time limits and retention.", chamberlain.Settings()),
        sentinel.FILE: settings_text(
            "What the sentinel watches; each watcher is on if its key is there.", {"polling": watchers}
        ),
    }
    with translated(f"writing the configuration of {root}"):
        for name, text in files.items():
            if not (root / name).exists():
                replace_whole(root / name, text.encode())


_MANIFEST = """\
name: gen-hello
description: greets, and asks before it greets a stranger
timeout_seconds: 60
subscribes: [hello.*]
schedules: []
command: [./soldier.sh]
"""
_SOLDIER = """\
#!/bin/sh
# A soldier reads its task from $KINGDOM_TASK_PATH and writes its result to $KINGDOM_RESULT_PATH.
if grep -q '"type": "hello.stranger"' "$KINGDOM_TASK_PATH"; then
    result='"status": "needs_human", "question": "Shall I greet a stranger?", "kind": "confirm"'
elif grep -q '"human_response": "no"' "$KINGDOM_TASK_PATH"; then
    result='"status": "skipped", "reason": "nobody was greeted"'
else
    result='"status": "success", "summary": "hello"'
fi
printf '{"task_id": "%s", %s}' "$KINGDOM_TASK_ID" "$result" > "$KINGDOM_RESULT_PATH.new"
mv "$KINGDOM_RESULT_PATH.new" "$KINGDOM_RESULT_PATH"
"""


def install_sample(home: Home) -> Manifest:
    """Install the sample general; one that is there stays as it is."""
    if (home.root / FOLDER / "gen-hello.yaml").exists():
        return read_manifest(home.root / FOLDER / "gen-hello.yaml")
    folder = home.root / "sample/gen-hello"
    with translated("writing the sample general"):
        make_dirs(folder)
        replace_whole(folder / MANIFEST, _MANIFEST.encode())
        replace_whole(folder / "soldier.sh", _SOLDIER.encode(), mode=0o755)
    return install(home, folder)
