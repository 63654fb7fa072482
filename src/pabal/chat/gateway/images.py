"""Images: kept once under the hash of their bytes, with a thumbnail; nothing is believed that a client says of them.

The type is what the bytes are. The size in pixels is read from the head before anything is unpacked, so that a small
file cannot become a large picture. All of it runs in a thread; only one picture is unpacked at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import msgspec
from PIL import Image as Pillow
from PIL import ImageOps

from pabal.durable import make_dirs, replace_whole
from pabal.errors import InvalidBody, TooLarge

TYPES = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/gif": "GIF"}
THUMBNAIL = "image/webp"
_ID = re.compile(r"[0-9a-f]{64}")
_SIDE = 320  # pixels


class Image(msgspec.Struct, frozen=True):
    """An image that is kept. `id` is the SHA-256 of its bytes."""

    id: str
    type: str
    width: int
    height: int
    bytes: int


class Images:
    """A folder of images. Gateways that share it serve each other's."""

    def __init__(self, folder: Path, *, pixels: int) -> None:
        self._folder, self._pixels = folder, pixels
        self._pool = ThreadPoolExecutor(1, "pabal-chat-image")

    async def keep(self, data: bytes, kind: str) -> Image:
        """Keep an image that is of the type it is said to be; TooLarge, InvalidBody."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._keep, data, kind)

    async def path(self, image_id: str, *, thumbnail: bool = False) -> tuple[Path, str] | None:
        """Return where an image lies and its type; None if there is none."""
        return await asyncio.to_thread(self._path, image_id, thumbnail)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _path(self, image_id: str, thumbnail: bool) -> tuple[Path, str] | None:
        if not _ID.fullmatch(image_id):
            return None
        for kind, name in {"thumbnail": THUMBNAIL}.items() if thumbnail else _names().items():
            path = self._place(image_id, kind)
            if path.is_file():
                return path, name
        return None

    def _keep(self, data: bytes, kind: str) -> Image:
        image_id = hashlib.sha256(data).hexdigest()
        picture = self._opened(data, kind)
        kept = Image(image_id, kind, *picture.size, len(data))
        place, small = self._place(image_id, TYPES[kind].lower()), self._place(image_id, "thumbnail")
        if not small.is_file() or not place.is_file():
            thumbnail = _thumbnail(picture)
            make_dirs(place.parent)
            replace_whole(small, thumbnail)
            replace_whole(place, data)  # last: an image that is there has its thumbnail
        return kept

    def _opened(self, data: bytes, kind: str) -> Pillow.Image:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Pillow.DecompressionBombWarning)  # our own limit follows
                picture = Pillow.open(BytesIO(data), formats=[TYPES[kind]])
        except Exception as exc:  # decoders raise what they like for bytes that are no image
            raise InvalidBody(f"these bytes are no {kind}") from exc
        width, height = picture.size
        if width * height > self._pixels:
            raise TooLarge(f"an image has at most {self._pixels} pixels; found {width} x {height}")
        return picture

    def _place(self, image_id: str, suffix: str) -> Path:
        return self._folder / image_id[:2] / f"{image_id}.{suffix}"


def _names() -> dict[str, str]:
    return {name.lower(): kind for kind, name in TYPES.items()}


def _thumbnail(picture: Pillow.Image) -> bytes:
    try:
        picture.draft("RGB", (_SIDE * 2, _SIDE * 2))
        picture.load()
        upright = ImageOps.exif_transpose(picture)
        plain = upright.convert("RGBA" if upright.has_transparency_data else "RGB")
        plain.thumbnail((_SIDE, _SIDE))
        out = BytesIO()
        plain.save(out, "WEBP", quality=80)
    except Exception as exc:  # as above: a file may be broken anywhere
        raise InvalidBody("the image is damaged: it cannot be shown") from exc
    return out.getvalue()
