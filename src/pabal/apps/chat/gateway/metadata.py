"""Removes from an image file what is not the picture: place, time, camera, comments, previews, what follows its end.

The picture itself is not encoded again. What decoders need stays: colour profiles, transparency, animation; and the
orientation, in an EXIF block that holds nothing else.
"""

from __future__ import annotations

import struct

from pabal.errors import InvalidBody

_PNG_KEPT = frozenset(b"IHDR PLTE IDAT IEND tRNS gAMA cHRM sRGB iCCP sBIT bKGD pHYs cICP acTL fcTL fdAT".split())
_WEBP_KEPT = frozenset({b"VP8X", b"VP8 ", b"VP8L", b"ALPH", b"ANIM", b"ANMF", b"ICCP"})
_GIF_KEPT = frozenset({b"NETSCAPE2.0", b"ANIMEXTS1.0"})
_EXIF_FLAG, _XMP_FLAG = 0x08, 0x04  # of VP8X


def without_metadata(data: bytes, kind: str, orientation: int) -> bytes:
    """Return the file of a sound image without metadata; raise InvalidBody if its structure cannot be followed."""
    try:
        match kind:
            case "image/jpeg":
                return _jpeg(data, orientation)
            case "image/png":
                return _png(data, orientation)
            case "image/webp":
                return _webp(data, orientation)
            case _:
                return _gif(data)
    except (IndexError, struct.error, ValueError) as exc:
        raise InvalidBody("the image is damaged: it cannot be shown") from exc


def _exif(orientation: int) -> bytes:
    """Return a TIFF block with the orientation alone."""
    return b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01" + struct.pack(">H", orientation) + b"\0\0\0\0\0\0"


def _jpeg(data: bytes, orientation: int) -> bytes:
    out = [data[:2]]
    if orientation != 1:
        block = b"Exif\0\0" + _exif(orientation)
        out.append(b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block)
    at = 2
    while True:
        while data[at + 1] == 0xFF:  # fill bytes
            at += 1
        marker = data[at + 1]
        if data[at] != 0xFF:
            raise ValueError("no marker")
        if marker == 0xD9:
            return b"".join([*out, b"\xff\xd9"])
        end = at + 2 + struct.unpack_from(">H", data, at + 2)[0]
        if _jpeg_kept(marker, data[at + 4 : end]):
            out.append(data[at:end])
        at = end
        if marker == 0xDA:
            at = _scan_end(data, end)
            out.append(data[end:at])


def _jpeg_kept(marker: int, content: bytes) -> bool:
    if marker == 0xFE:
        return False
    if 0xE0 <= marker <= 0xEF:
        return marker in (0xE0, 0xEE) or marker == 0xE2 and content.startswith(b"ICC_PROFILE\0")
    return True


def _scan_end(data: bytes, at: int) -> int:
    """Return where the compressed data of a scan end: at a marker that is neither stuffing nor a restart."""
    while True:
        at = data.index(b"\xff", at)
        if data[at + 1] != 0 and not 0xD0 <= data[at + 1] <= 0xD7 and data[at + 1] != 0xFF:
            return at
        at += 1 if data[at + 1] == 0xFF else 2


def _png(data: bytes, orientation: int) -> bytes:
    import zlib

    out, at = [data[:8]], 8
    while True:
        (length,) = struct.unpack_from(">I", data, at)
        kind, end = data[at + 4 : at + 8], at + 12 + length
        if end > len(data):
            raise ValueError("cut off")
        if kind in _PNG_KEPT:
            if kind == b"IDAT" and orientation != 1:
                block = b"eXIf" + _exif(orientation)
                out.append(struct.pack(">I", len(block) - 4) + block + struct.pack(">I", zlib.crc32(block)))
                orientation = 1
            out.append(data[at:end])
        if kind == b"IEND":
            return b"".join(out)
        at = end


def _webp(data: bytes, orientation: int) -> bytes:
    chunks: list[tuple[bytes, bytes]] = []
    at, end = 12, min(len(data), 8 + struct.unpack_from("<I", data, 4)[0])
    while at + 8 <= end:
        kind, (length,) = data[at : at + 4], struct.unpack_from("<I", data, at + 4)
        if kind in _WEBP_KEPT:
            chunks.append((kind, data[at + 8 : at + 8 + length]))
        at += 8 + length + length % 2
    if chunks and chunks[0][0] == b"VP8X":
        head = bytearray(chunks[0][1])
        head[0] &= ~(_EXIF_FLAG | _XMP_FLAG)
        if orientation != 1:
            head[0] |= _EXIF_FLAG
            chunks.append((b"EXIF", _exif(orientation)))
        chunks[0] = (b"VP8X", bytes(head))
    body = b"".join(kind + struct.pack("<I", len(some)) + some + b"\0" * (len(some) % 2) for kind, some in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def _gif(data: bytes) -> bytes:
    at = 13 + _colours(data[10])
    out = [data[:at]]
    while True:
        start, kind = at, data[at]
        if kind == 0x3B:
            return b"".join([*out, b";"])
        if kind == 0x2C:
            at = _blocks_end(data, at + 11 + _colours(data[at + 9]))
            kept = True
        elif kind == 0x21:
            label, content = data[at + 1], data[at + 3 : at + 3 + data[at + 2]]
            at = _blocks_end(data, at + 2)
            kept = label in (0xF9, 0x01) or label == 0xFF and content in _GIF_KEPT
        else:
            raise ValueError("no block")
        if kept:
            out.append(data[start:at])


def _colours(flags: int) -> int:
    """Return the bytes of a colour table."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _blocks_end(data: bytes, at: int) -> int:
    while data[at]:
        at += 1 + data[at]
    return at + 1
