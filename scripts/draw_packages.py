"""Draws the packages of `src/pabal` as text, from the imports that are really there.

    python scripts/draw_packages.py            print the picture
    python scripts/draw_packages.py --write    put it into docs/architecture.md

A package stands above everything that it imports. Behind its name stand the packages that it imports, without those
that are reached through another one already. A test compares the picture in the page with the imports.
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "pabal"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- drawn by scripts/draw_packages.py -->\n```text\n", "```\n<!-- end -->"

# The modules at the root, by their role. Every folder is a box of its own, and so is each application.
GROUPS = {
    "values": ("errors", "names", "clock", "ids", "jsontext", "message", "envelope", "policy"),
    "contracts": ("store", "topic_store", "codec"),
    "primitives": ("durable", "filesystem", "watch"),
}


def box_of(place: str) -> str:
    """Return the box that a module belongs to, by its path below the package."""
    first, *rest = place.split("/")
    if first == "apps" and rest:
        return f"apps/{rest[0]}"
    return next((group for group, names in GROUPS.items() if first in names), first)


def imported(path: Path) -> set[str]:
    """Return the boxes that a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pabal":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(box_of("/".join(name.split(".")[1:])) for name in names if "." in name)
    return found


def edges() -> dict[str, set[str]]:
    """Return the boxes, each with the boxes that it imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(SRC.rglob("*.py")):
        place = "/".join(path.relative_to(SRC).with_suffix("").parts).removesuffix("/__init__")
        if place not in ("__init__", "apps"):
            found.setdefault(box_of(place), set()).update(imported(path))
    boxes = set(found)
    return {box: (others & boxes) - {box} for box, others in found.items()}


def reach(box: str, graph: dict[str, set[str]]) -> set[str]:
    """Return everything that a box imports, directly or through others."""
    found: set[str] = set()
    waiting = list(graph[box])
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting += graph[other]
    return found


def picture() -> str:
    """Return the boxes in layers, the highest first."""
    graph = edges()
    reached = {box: reach(box, graph) for box in graph}
    for box in graph:
        assert box not in reached[box], f"{box} imports itself through {sorted(graph[box])}"
    heights: dict[str, int] = {}
    for box in sorted(graph, key=lambda each: len(reached[each])):
        heights[box] = 1 + max((heights[other] for other in graph[box]), default=0)
    wide = max(map(len, graph))
    lines = []
    for height in sorted(set(heights.values()), reverse=True):
        for box in sorted(each for each in graph if heights[each] == height):
            direct = graph[box] - {far for other in graph[box] for far in reached[other]}
            said = " ".join(sorted(direct)) or " ".join(GROUPS.get(box, ()))
            arrow = "->" if direct else "  "
            lines.append(f"{box:<{wide}}  {arrow} {said}".rstrip())
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def main() -> None:
    drawn = picture()
    if "--write" not in sys.argv[1:]:
        sys.stdout.write(drawn)
        return
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{drawn}{END}{after}")


if __name__ == "__main__":
    main()
