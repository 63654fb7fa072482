"""Searches inputs for one reader by coverage, as a process of its own: `python -m tests.fuzz.guided READER COUNT SEED`.

libFuzzer keeps the inputs that reach new code, and changes them further. It needs atheris, which `make soak` installs.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["pabal"], enable_loader_override=False):
    from tests.fuzz.readers import CORPUS, READERS


def main() -> None:
    name, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    reader = READERS[name]
    warnings.simplefilter("ignore")

    def read(data: bytes) -> None:
        with suppress(*reader.errors):
            reader.read(data)

    with tempfile.TemporaryDirectory() as folder:
        words, found = Path(folder, "words"), Path(folder, "found")
        # libFuzzer refuses a dictionary without a word.
        quoted = ["".join(f"\\x{byte:02x}" for byte in word) for word in (*reader.words, b"0")]
        words.write_text("".join(f'"{word}"\n' for word in quoted))
        found.mkdir()
        limits = ["-timeout=20", "-rss_limit_mb=1024", "-max_len=4096"]
        options = [
            f"-runs={int(count * reader.share)}",
            f"-seed={seed}",
            f"-dict={words}",
            f"-artifact_prefix={folder}/",
        ]
        atheris.Setup([sys.argv[0], *limits, *options, str(found), str(CORPUS / name)], read)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
