"""The view of the demo: a frame of 80 columns that is redrawn on a terminal, plain lines anywhere else."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import click

from pabal.cli.text import clip, width
from pabal.store import State

_WIDTH = 78
_EVENTS = 11
_BAR = 40
_SHOWN = (State.READY, State.DELAYED, State.INFLIGHT, State.DONE, State.DEAD)
_COLOURS = {"bad": "red", "good": "green", "odd": "yellow"}


@dataclass
class Scene:
    """All that a frame shows."""

    url: str
    elapsed: float = 0.0
    counts: Mapping[State, int] = field(default_factory=dict)
    rates: tuple[float, float] = (0.0, 0.0)
    worker: str = ""
    events: deque[tuple[float, str, str]] = field(default_factory=lambda: deque(maxlen=_EVENTS))


def frame(scene: Scene, *, colour: bool = False) -> list[str]:
    """Draw the scene as lines of equal width."""
    lines = [_rule("┌", f" pabal demo  {clip(scene.url, 44)} ", f" {scene.elapsed:.0f} s ", "┐")]
    most = max([*(scene.counts.get(state, 0) for state in _SHOWN), 1])
    lines += [_inside(_count_line(state, scene.counts.get(state, 0), most)) for state in _SHOWN]
    published, done = scene.rates
    lines.append(_rule("├", f" {published:.0f} published/s  {done:.0f} done/s ", f" {scene.worker} ", "┤"))
    shown = [*scene.events] + [(0.0, "", "")] * (_EVENTS - len(scene.events))
    for at, tone, text in shown:
        line = f"{at:5.1f} s  {text}" if text else ""
        lines.append(_inside(line, fg=_COLOURS.get(tone) if colour else None))
    lines.append(_rule("└", "", "", "┘"))
    return lines


def _count_line(state: State, count: int, most: int) -> str:
    bar = "█" * round(_BAR * count / most) or ("▏" if count else "")
    return f"{state:<9}{count:>6}  {bar}"


def _inside(text: str, fg: str | None = None) -> str:
    text = clip(text, _WIDTH - 4)
    padded = text + " " * (_WIDTH - 4 - width(text))
    return f"│ {click.style(padded, fg=fg) if fg else padded} │"


def _rule(left: str, title: str, end: str, right: str) -> str:
    gap = _WIDTH - 3 - width(title) - width(end)
    return f"{left}─{title}{'─' * max(0, gap)}{end}{right}"


class Screen:
    """Draws each frame over the last one on a terminal, or prints new events as lines."""

    def __init__(self) -> None:
        fits = os.get_terminal_size().columns >= _WIDTH if sys.stdout.isatty() else False
        self._live = fits and os.environ.get("TERM", "dumb") != "dumb"
        self._colour = self._live and "NO_COLOR" not in os.environ
        self._drawn = 0
        self._told = 0.0

    def event(self, scene: Scene, tone: str, text: str) -> None:
        scene.events.append((scene.elapsed, tone, text))
        if not self._live:
            click.echo(f"{scene.elapsed:5.1f} s  {text}")

    def update(self, scene: Scene, *, last: bool = False) -> None:
        if self._live:
            self._draw(frame(scene, colour=self._colour))
        elif last or scene.elapsed - self._told >= 2.0:
            self._told = scene.elapsed
            counts = "  ".join(f"{state} {scene.counts.get(state, 0)}" for state in _SHOWN)
            click.echo(f"{scene.elapsed:5.1f} s  {counts}")

    def close(self) -> None:
        if self._drawn:
            click.echo("\x1b[?25h", nl=False, color=True)

    def _draw(self, lines: list[str]) -> None:
        back = f"\x1b[{self._drawn}A" if self._drawn else "\x1b[?25l"
        click.echo(back + "\n".join(f"\r{line}\x1b[K" for line in lines), color=True)
        self._drawn = len(lines)
