"""Feeds readers with inputs, as a process of its own: `python -m tests.fuzz.run READER,READER COUNT SEED`.

Memory is limited by the kernel, time by an alarm for each input, so an input that hangs or explodes is named like one
that raises an error that is not documented.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
import traceback
import warnings
from types import FrameType

from tests.fuzz.mutate import Mutator
from tests.fuzz.readers import CORPUS, READERS, Reader

MEMORY = 512 << 20  # bytes, beside what the process has at the start
SECONDS = 20.0  # for one input: hundreds of times what the slowest takes, on a busy machine too
_numbers = re.compile(r"\d+|'[^']*'|\"[^\"]*\"|`[^`]*`")


class TooSlow(BaseException):
    """An input took too long. No reader may catch this."""


def main() -> None:
    names, count, seed = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    with open("/proc/self/statm") as file:
        limit = MEMORY + int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _alarm)
    for name in names:
        _run(name, max(50, int(count * READERS[name].share)), seed)


def _run(name: str, count: int, seed: int) -> None:
    reader = READERS[name]
    corpus = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    mutator = Mutator(corpus, reader.words, seed)
    kinds: dict[str, int] = {}
    for number in range(count):
        data = corpus[number] if number < len(corpus) else mutator.next()
        outcome = _tried(reader, data)
        if outcome.startswith("FAILED"):
            sys.exit(f"reader {name}, seed {seed}, input {number}, {len(data)} bytes:\n{ascii(data[:2000])}\n{outcome}")
        mutator.learn(data, outcome)
        kind = outcome.partition(":")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    sys.stdout.write(json.dumps({"reader": name, "inputs": count, "outcomes": kinds}) + "\n")


def _alarm(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def _tried(reader: Reader, data: bytes) -> str:
    """Return what became of an input, as a short text; it begins with FAILED if that may not happen."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        return f"read:{reader.read(data)!s:.200}"
    except reader.errors as exc:
        return f"{type(exc).__name__}:{_numbers.sub('', str(exc))[:80]}"
    except TooSlow:
        return f"FAILED: more than {SECONDS:g} seconds\n{traceback.format_exc()}"
    except MemoryError:
        return f"FAILED: more than {MEMORY >> 20} MiB\n{traceback.format_exc()}"
    except Exception:
        return f"FAILED: an error that is not documented\n{traceback.format_exc()}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


if __name__ == "__main__":
    main()
