"""Images: stored once under the hash of their bytes, with a thumbnail. A client's word about them is not trusted.

What a camera or a program wrote into the file beside the picture, such as a place, is removed. An empty file beside an
image notes each user who uploaded it, so that it can be sent and seen by its sender while the database is down.

The type is determined from the bytes. The size in pixels is read from the header before decoding, so a small file
cannot expand to a huge picture. A process of its own decodes, within limits of memory and time, one picture at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from pabal import jsontext
from pabal.apps.chat.gateway import thumbnail
from pabal.apps.chat.gateway.metadata import without_metadata
from pabal.durable import make_dirs, replace_whole
from pabal.errors import InvalidBody, TooLarge

TYPES = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/gif": "GIF"}
THUMBNAIL = "image/webp"
_ID = re.compile(r"[0-9a-f]{64}")
_MEMORY = 64 << 20  # bytes for decoding, beside the picture itself
_SECONDS = 30.0


class Image(msgspec.Struct, frozen=True):
    """A stored image. `id` is the SHA-256 of its bytes."""

    id: str
    type: str
    width: int
    height: int
    bytes: int


class Images:
    """A folder of images. Gateways that share it serve each other's images."""

    def __init__(self, folder: Path, *, pixels: int, side: int) -> None:
        self._folder, self._pixels, self._side = folder, pixels, side
        self._pool = ThreadPoolExecutor(1, "pabal-chat-image")

    async def keep(self, data: bytes, kind: str, user_id: str) -> Image:
        """Store an image of a user; raise TooLarge, or InvalidBody if it is not of the declared type."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._keep, data, kind, user_id)

    async def uploaded(self, image_id: str, user_id: str) -> bool:
        """Return whether a user has uploaded an image; needs no database."""
        return await asyncio.to_thread(self._uploaded, image_id, user_id)

    async def path(self, image_id: str, *, thumbnail: bool = False) -> tuple[Path, str] | None:
        """Return the path and type of an image, or None."""
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

    def _uploaded(self, image_id: str, user_id: str) -> bool:
        return bool(_ID.fullmatch(image_id)) and self._place(image_id, f"by-{user_id}").is_file()

    def _keep(self, data: bytes, kind: str, user_id: str) -> Image:
        width, height, orientation, reduced = self._decoded(data, kind)
        data = without_metadata(data, kind, orientation)
        image_id = hashlib.sha256(data).hexdigest()
        kept = Image(image_id, kind, width, height, len(data))
        place, small = self._place(image_id, TYPES[kind].lower()), self._place(image_id, "thumbnail")
        if not small.is_file() or not place.is_file():
            make_dirs(place.parent)
            replace_whole(small, reduced)
            replace_whole(place, data)  # last: so every stored image has its thumbnail
        else:
            os.utime(place)  # it is wanted again: retention counts from now
        if not self._uploaded(image_id, user_id):
            replace_whole(self._place(image_id, f"by-{user_id}"), b"")
        return kept

    def _decoded(self, data: bytes, kind: str) -> tuple[int, int, int, bytes]:
        """Return the size in pixels, the orientation and a thumbnail, made by a process with limits."""
        # Decoding keeps two or three copies of at most four bytes for each pixel.
        memory = _MEMORY + 16 * self._pixels
        limits = (str(number) for number in (self._pixels, self._side, memory))
        command = [sys.executable, "-P", thumbnail.__file__, TYPES[kind], *limits]
        try:
            ran = subprocess.run(command, input=data, capture_output=True, timeout=_SECONDS, check=True)
        except (subprocess.SubprocessError, MemoryError) as exc:
            raise InvalidBody("the image cannot be decoded within the limits of time and memory") from exc
        line, _, small = ran.stdout.partition(b"\n")
        answer = jsontext.read(line)
        refused = answer.get("refused")
        if refused == "no image":
            raise InvalidBody(f"these bytes are no {kind}")
        if refused == "too large":
            raise TooLarge(
                f"an image has at most {self._pixels} pixels, and {self._side} on each side;"
                f" found {answer['width']} x {answer['height']}"
            )
        if refused:
            raise InvalidBody("the image is damaged: it cannot be shown")
        return answer["width"], answer["height"], answer["orientation"], small

    def _place(self, image_id: str, suffix: str) -> Path:
        return self._folder / image_id[:2] / f"{image_id}.{suffix}"


def old_images(folder: Path, before: float) -> Iterator[str]:
    """Return the ids of images that were last uploaded before a time."""
    for suffix in _names():
        for path in folder.glob(f"??/*.{suffix}"):
            if _ID.fullmatch(path.stem) and path.stat().st_mtime < before:
                yield path.stem


def remove_image(folder: Path, image_id: str) -> None:
    """Remove an image with its thumbnail and the notes of its uploaders."""
    for path in (folder / image_id[:2]).glob(f"{image_id}.*"):
        path.unlink(missing_ok=True)


def _names() -> dict[str, str]:
    return {name.lower(): kind for kind, name in TYPES.items()}
