"""Runs real commands and draws what they print as an SVG: `python scripts/picture.py docs/pictures/first-look.svg`."""

import os
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

COMMANDS = [
    "export PABAL_URL=file:spool",
    "pabal publish jobs '{\"temp\": 36.5}' --priority high",
    "cat spool/jobs/ready/*",
    "pabal consume jobs --count 1 --exec 'false'",
    "pabal status jobs | head -2",
    "pabal consume jobs --wait 5 --ack",
]
COLUMNS, LINE, CHAR, PAD = 100, 19, 8.1, 18


def run(commands: list[str], folder: Path) -> list[tuple[str, str]]:
    """Return each line with its kind: command or output."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": str(COLUMNS), "LANG": "C.UTF-8"}
    exports = "; ".join(command for command in commands if command.startswith("export "))
    lines: list[tuple[str, str]] = []
    for command in commands:
        lines.append(("command", command))
        done = subprocess.run(
            ["bash", "-c", f"{exports}; {command}"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for line in done.stdout.rstrip().splitlines():
            lines.extend(("output", line[start : start + COLUMNS]) for start in range(0, max(len(line), 1), COLUMNS))
    return lines


def draw(lines: list[tuple[str, str]]) -> str:
    """Return the lines as a terminal window that looks the same on a light and a dark page."""
    width, height = COLUMNS * CHAR + 2 * PAD, len(lines) * LINE + 2 * PAD
    rows = []
    for number, (kind, text) in enumerate(lines):
        prompt = '<tspan fill="#7ee787">$ </tspan>' if kind == "command" else ""
        colour = "#e6edf3" if kind == "command" else "#9da7b3"
        y = PAD + LINE * (number + 0.75)
        rows.append(f'<text x="{PAD}" y="{y:g}" fill="{colour}" xml:space="preserve">{prompt}{escape(text)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        ' font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="13.5">\n'
        f'<rect width="{width:g}" height="{height:g}" rx="10" fill="#0d1117"/>\n' + "\n".join(rows) + "\n</svg>\n"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        Path(sys.argv[1]).write_text(draw(run(COMMANDS, Path(folder))))
