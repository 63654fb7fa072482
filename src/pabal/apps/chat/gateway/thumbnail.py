"""A program that makes the thumbnail of one image: the image on stdin, a line of JSON and the thumbnail on stdout.

It runs as a process of its own, with limits on memory and time, because decoders are the code that a stranger's bytes
reach first. It imports nothing of this package, so that it starts quickly. The size in pixels is read from the header,
and judged before anything is decoded. Exit status 0 means that the line is an answer, also one that refuses.
"""

import json
import resource
import sys
import warnings
from io import BytesIO
from typing import Any

THUMBNAIL_SIDE = 320  # pixels
_CPU_SECONDS = 20
_ORIENTATION = 0x0112  # the tag of EXIF


def main() -> None:
    form, pixels, side, memory = sys.argv[1], *map(int, sys.argv[2:])
    data = sys.stdin.buffer.read()
    from PIL import Image  # before the limits: libraries are mapped, too

    Image.preinit()
    Image.init()
    memory += _mapped()
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    line, thumbnail = _answer(data, form, pixels, side)
    sys.stdout.buffer.write(json.dumps(line).encode() + b"\n" + thumbnail)


def _mapped() -> int:
    """Return the bytes of address space that are in use."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _answer(data: bytes, form: str, pixels: int, side: int) -> tuple[dict[str, Any], bytes]:
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit follows
            picture = Image.open(BytesIO(data), formats=[form])
    except Exception:  # decoders raise any exception for bytes that are no image
        return {"refused": "no image"}, b""
    width, height = picture.size
    if width * height > pixels or max(width, height) > side:
        return {"refused": "too large", "width": width, "height": height}, b""
    try:
        thumbnail = _thumbnail(picture)
        turned = picture.getexif().get(_ORIENTATION, 1)
        turned = turned if turned in range(2, 9) else 1
        return {"width": width, "height": height, "orientation": turned}, thumbnail
    except Exception:  # as above: a file may be damaged anywhere, or need more memory than there is
        return {"refused": "damaged"}, b""


def _thumbnail(picture: Any) -> bytes:
    from PIL import ImageOps

    picture.draft("RGB", (THUMBNAIL_SIDE * 2, THUMBNAIL_SIDE * 2))
    picture.load()
    upright = ImageOps.exif_transpose(picture)
    plain = upright.convert("RGBA" if upright.has_transparency_data else "RGB")
    plain.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    out = BytesIO()
    plain.save(out, "WEBP", quality=80)
    return out.getvalue()


if __name__ == "__main__":
    main()
