"""One table out of all that was measured, with each aim beside it and a word on whether it was met."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from contest import Ratio
from footprint import Latency
from kinds import PEERS, PROMISES, UNSYNCED

Cell = Ratio | Latency | float | str | None


class Line(NamedTuple):
    """A measured row.

    `own_base`: each is divided by itself, so that rates and not ratios tell who is ahead. `noise`: how much less a peer
    must need to be ahead, where the next run would turn a smaller difference around.
    """

    title: str
    ours: Cell
    aim: float | None = None
    peers: Mapping[str, Cell] = {}
    lower_is_better: bool = False
    synced: bool = False
    own_base: bool = False
    unit: str = ""
    noise: float = 0.0


def render(lines: Iterable[Line]) -> str:
    """Return the table and what each column promises, in Markdown."""
    head = ["measured", "Pabal", "range", "aim", "verdict", *PEERS, "base per s"]
    rows = [_cells(line) for line in lines]
    promises = [
        [name, promise.kill, promise.power, promise.consumer, promise.waits] for name, promise in PROMISES.items()
    ]
    return "\n\n".join(
        [
            _markdown(head, rows),
            _markdown(["", "kill -9", "power cut", "consumer killed", "how a consumer waits"], promises),
        ]
    )


def verdict(line: Line) -> str:
    """Say whether the aim was met and who is ahead."""
    ours = _number(line.ours)
    if ours is None:
        return ""
    words = []
    if line.aim is not None:
        met = ours <= line.aim if line.lower_is_better else ours >= line.aim
        words.append("met" if met else f"MISSED by {abs(ours - line.aim) / line.aim:.0%}")
    ahead = [name for name, cell in line.peers.items() if _ahead(cell, line) and not _excused(name, line)]
    if ahead:
        words.append(f"BEHIND {', '.join(ahead)}")
    return "; ".join(words)


def _ahead(cell: Cell, line: Line) -> bool:
    if line.own_base and isinstance(cell, Ratio) and isinstance(line.ours, Ratio):
        return cell.rate > line.ours.rate
    ours, theirs = _number(line.ours), _number(cell)
    if ours is None or theirs is None:
        return False
    return theirs < ours - line.noise if line.lower_is_better else theirs > ours


def _excused(peer: str, line: Line) -> bool:
    return line.synced and peer in UNSYNCED


def _cells(line: Line) -> list[str]:
    aim = "" if line.aim is None else f"{'at most ' if line.lower_is_better else ''}{line.aim:.2f}"
    peers = []
    for name in PEERS:
        text = _text(line.peers.get(name), line.own_base)
        peers.append(f"({text}, not synced)" if text and _excused(name, line) else text)
    base = f"{line.ours.base_rate:,.0f}" if isinstance(line.ours, Ratio) else ""
    span = f"{line.ours.low:.2f} - {line.ours.high:.2f}" if isinstance(line.ours, Ratio) else ""
    title = f"{line.title}, {line.unit}" if line.unit else line.title
    return [title, f"**{_text(line.ours, line.own_base)}**", span, aim, verdict(line), *peers, base]


def _number(cell: Cell) -> float | None:
    match cell:
        case Ratio():
            return cell.median
        case Latency():
            return cell.p50
        case float():
            return cell
    return None


def _text(cell: Cell, rates: bool) -> str:
    match cell:
        case None:
            return ""
        case str():
            return cell
        case Latency():
            return f"{cell.p50:.2f} / {cell.p99:.2f}"
        case Ratio():
            ratio = f"{cell.median:.2f}" if cell.median >= 0.01 else f"{cell.median:.4f}"
            return f"{ratio} ({cell.rate:,.0f}/s)" if rates else ratio
    return f"{cell:.2f}"


def _markdown(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
