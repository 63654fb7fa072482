"""Prints the functions of `src/pabal` that a publish, a lease and an ack cross, on each store.

    python scripts/walk.py                              the totals of every store
    python scripts/walk.py --store files --list         the functions too, in the order in which they are entered
    python scripts/walk.py --postgres postgresql://…    PostgreSQL too, in a scratch schema of that database

The handle is warm: some messages were published, leased and acknowledged before the one that is traced, as in a
consumer that has run for a while. A generator counts once, however often it is resumed; a comprehension is part of the
function around it.
"""

import argparse
import sys
import tempfile
import uuid
from collections.abc import Callable
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import TypeVar

import pabal
from pabal.queues.delivery import Delivery

SRC = str(Path(pabal.__file__).parent)
URLS = {"files": "file://{place}/queues", "sqlite": "sqlite://{place}/pabal.db", "hybrid": "hybrid://{place}/hybrid"}
PARTS = {"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"}  # of the function around them
WARM = 3  # messages before the one that is traced

T = TypeVar("T")


def trace(call: Callable[[], T]) -> tuple[T, list[str]]:
    """Run a call; return its result and the functions of the package that it entered, as `module:function`."""
    crossed: list[str] = []
    generators: set[FrameType] = set()  # those that were entered: an event of theirs after the first is a resumption

    def on_event(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SRC) or code.co_name in PARTS or frame in generators:
            return
        if code.co_flags & CO_GENERATOR:
            generators.add(frame)
        module = code.co_filename.removeprefix(SRC).removesuffix(".py").strip("/")
        crossed.append(f"{module}:{code.co_qualname}")

    sys.setprofile(on_event)
    try:
        return call(), crossed
    finally:
        sys.setprofile(None)


def walk(url: str) -> dict[str, list[str]]:
    """Return what one publish, one lease and one ack cross on the store at a URL."""
    with pabal.connect(url) as mq:
        queue = mq.queue("walk")

        def lease() -> Delivery:
            (delivery,) = queue.lease()
            return delivery

        for number in range(WARM):
            queue.publish({"number": number})
            lease().ack()
        _, publishing = trace(lambda: queue.publish({"number": WARM}))
        delivery, leasing = trace(lease)
        _, acknowledging = trace(delivery.ack)
    return {"publish": publishing, "lease": leasing, "ack": acknowledging}


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the functions that a publish, a lease and an ack cross.")
    parser.add_argument(
        "--store", choices=[*URLS, "postgres"], action="append", help="only this store; may be repeated"
    )
    parser.add_argument("--postgres", metavar="URL", help="a PostgreSQL database in which a scratch schema may be made")
    parser.add_argument("--list", action="store_true", help="print the functions, not only how many there are")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        urls = {store: url.format(place=place) for store, url in URLS.items()}
        if options.postgres:
            separator = "&" if "?" in options.postgres else "?"
            urls["postgres"] = f"{options.postgres}{separator}schema=walk_{uuid.uuid4().hex[:8]}"
        elif "postgres" in (options.store or ()):
            parser.error("--store postgres needs --postgres URL")
        for store in options.store or urls:
            ways = walk(urls[store])
            lines = [f"{store}: " + ", ".join(f"{verb} {len(way)}" for verb, way in ways.items())]
            for verb, way in ways.items() if options.list else ():
                lines += ["", f"  {store} {verb}: {len(way)}", *(f"    {name}" for name in way)]
            sys.stdout.write("\n".join(lines) + "\n" * (1 + options.list))


if __name__ == "__main__":
    main()
