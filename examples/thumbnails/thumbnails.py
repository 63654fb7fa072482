"""Thumbnails: pictures come into a queue, small pictures come out, and each night old ones are removed.

Run it:        pabal work thumbnails:app --processes 4 --concurrency 2
Ask for one:   python thumbnails.py photo.ppm

The pictures are PPM files, so that the example needs no library for images.
"""

import sys
import time
from pathlib import Path

import msgspec

import pabal

OUT = Path("thumbs")
WIDTH = 64  # pixels
WEEK = 7 * 86400.0

app = pabal.App("sqlite:thumbnails.db")


class Picture(msgspec.Struct):
    path: str
    width: int = WIDTH


@app.on("pictures", type="picture.shrink", body=Picture, timeout=60)
def shrink(picture: Picture) -> None:
    """Write the small picture whole or not at all: a message may come twice."""
    source, target = Path(picture.path), OUT / f"{Path(picture.path).stem}-{picture.width}.ppm"
    OUT.mkdir(exist_ok=True)
    draft = target.with_suffix(".tmp")
    draft.write_bytes(shrunk(source.read_bytes(), picture.width))
    draft.replace(target)


@app.on("pictures")
async def other(delivery: pabal.Delivery) -> None:
    """Every other type: set aside with a reason."""
    delivery.bury(f"what is {delivery.message.type!r}?")


@app.every("30 3 * * *", queue="cleaning", timezone="Asia/Seoul")
def nightly() -> dict[str, float]:
    return {"older_than": time.time() - WEEK}


@app.on("cleaning")
def clean(delivery: pabal.Delivery) -> None:
    for path in OUT.glob("*.ppm"):
        if path.stat().st_mtime < delivery.body["older_than"]:
            path.unlink(missing_ok=True)


def shrunk(data: bytes, width: int) -> bytes:
    """Return a PPM picture (P6) with fewer pixels: the nearest of the large one for each of the small one."""
    kind, wide, high, most, pixels = data.split(maxsplit=4)
    if (kind, most) != (b"P6", b"255"):
        raise ValueError(f"a PPM file of 8 bits is expected; found {kind!r:.20} {most!r:.20}")
    columns, rows = int(wide), int(high)
    width = min(width, columns)
    height = max(1, rows * width // columns)
    chosen = [
        pixels[3 * place : 3 * place + 3]
        for y in range(height)
        for x in range(width)
        for place in [y * rows // height * columns + x * columns // width]
    ]
    return b"P6\n%d %d\n255\n%s" % (width, height, b"".join(chosen))


if __name__ == "__main__":
    with pabal.connect(app.url) as mq:
        for name in sys.argv[1:]:
            # While the picture waits or is being made small, asking again changes nothing.
            answer = mq.queue("pictures").publish(Picture(name), type="picture.shrink", unique=name)
            print(answer.id, "waits already" if answer.duplicate else "")
