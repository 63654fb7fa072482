"""Images: only what they are said to be, only so large, kept once, shown small."""

import hashlib
import json
import struct
import subprocess
import sys
import zlib
from io import BytesIO

import pytest
from PIL import Image

from pabal.apps.chat.gateway import thumbnail
from tests.apps.chat.gateways import Site, played, until

KINDS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WEBP", "image/gif": "GIF"}


def picture(kind: str = "image/png", size: tuple[int, int] = (640, 480), colour: str = "teal") -> bytes:
    out = BytesIO()
    Image.new("RGB", size, colour).save(out, KINDS[kind])
    return out.getvalue()


def bomb(width: int, height: int) -> bytes:
    """Return a small PNG whose head promises a very large picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"\0" * 1_000_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@played
async def test_an_image_is_kept_under_its_hash_and_shown_whole_and_small(site: Site) -> None:
    ann, bob, eve = site.person("ann"), site.person("bob"), site.person("eve")
    room = site.room(ann, bob)
    with site.gateway() as gateway:
        async with ann.rest(gateway) as a, bob.rest(gateway) as b, eve.rest(gateway) as e:
            for kind in KINDS:
                data = picture(kind)
                made = await a.post("/images", content=data, headers={"Content-Type": kind})
                name = hashlib.sha256(data).hexdigest()
                assert made.status_code == 201, made.text
                assert made.json() == {"id": name, "type": kind, "width": 640, "height": 480, "bytes": len(data)}
                assert (await b.get(f"/images/{name}")).status_code == 404  # it was posted nowhere yet
                shown = await a.get(f"/images/{name}")
                assert shown.content == data and shown.headers["content-type"] == kind
                assert shown.headers["content-security-policy"] == "default-src 'none'"
                small = await a.get(f"/images/{name}/thumbnail")
                assert small.headers["content-type"] == "image/webp"
                assert Image.open(BytesIO(small.content)).size == (320, 240)
                again = await b.post("/images", content=data, headers={"Content-Type": kind})
                assert again.json() == made.json()
            async with ann.socket(gateway, room) as one, bob.socket(gateway, room) as two:
                fresh = (
                    await a.post("/images", content=picture(colour="red"), headers={"Content-Type": "image/png"})
                ).json()
                assert (await one.send(room, fresh["id"], type="IMAGE"))["status"] == "ACCEPTED"
                await until(lambda: two.texts)
                assert two.of("newMessage")[0]["type"] == "IMAGE" and two.texts == [fresh["id"]]
                assert (await b.get(f"/images/{fresh['id']}")).status_code == 200
                assert (await e.get(f"/images/{fresh['id']}")).status_code == 404
                stolen = await two.send(room, fresh["id"], type="IMAGE")  # who did not upload it cannot post it on
                assert stolen["error"]["code"] == "ImageUnknown"
        async with ann.socket(gateway, room) as one:
            unknown = await one.send(room, "0" * 64, type="IMAGE")
            assert unknown["error"]["code"] == "ImageUnknown"
            assert (await one.send(room, "../../etc/passwd", type="IMAGE"))["error"]["code"] == "ImageUnknown"


@played
async def test_what_is_no_image_of_its_type_is_refused(embedded_site: Site) -> None:
    ann = embedded_site.person()
    with embedded_site.gateway() as gateway:
        async with ann.rest(gateway) as http:

            async def refused(data: bytes, kind: str) -> tuple[int, str]:
                answer = await http.post("/images", content=data, headers={"Content-Type": kind})
                return answer.status_code, answer.json()["error"]["code"]

            for kind in ("image/svg+xml", "text/html", "application/octet-stream", "", "image/bmp"):
                assert await refused(picture(), kind) == (415, "TypeRefused")
            assert await refused(picture("image/png"), "image/jpeg") == (400, "InvalidBody")
            assert await refused(b"<script>alert(1)</script>", "image/png") == (400, "InvalidBody")
            assert await refused(b"", "image/gif") == (400, "InvalidBody")
            assert await refused(picture()[:200], "image/png") == (400, "InvalidBody")
            assert await refused(picture("image/jpeg")[:300], "image/jpeg") == (400, "InvalidBody")
        assert not list(embedded_site.folder.glob("images/*/*")), "nothing of it was kept"


@pytest.mark.parametrize("size", [(100_000, 100_000), (60_000, 1_000), (2**31 - 1, 2), (1, 25_000_000), (17_000, 1)])
@played
async def test_a_small_file_does_not_become_a_large_picture(embedded_site: Site, size: tuple[int, int]) -> None:
    ann = embedded_site.person()
    with embedded_site.gateway() as gateway:
        async with ann.rest(gateway) as http:
            answer = await http.post("/images", content=bomb(*size), headers={"Content-Type": "image/png"})
            assert answer.status_code in (400, 413), answer.text


@played
async def test_an_image_of_too_many_pixels_is_refused_though_it_is_sound(embedded_site: Site) -> None:
    ann, out = embedded_site.person(), BytesIO()
    Image.new("1", (500, 401)).save(out, "PNG")
    with embedded_site.gateway(image_pixels=200_000) as gateway:
        async with ann.rest(gateway) as http:
            answer = await http.post("/images", content=out.getvalue(), headers={"Content-Type": "image/png"})
            assert answer.status_code == 413 and "500 x 401" in answer.json()["error"]["message"]


def decode(data: bytes, *limits: int) -> tuple[bytes, int]:
    """Run the program that decodes; return its line and its peak of memory in bytes."""
    command = [sys.executable, "-P", thumbnail.__file__, "PNG", *map(str, limits)]
    watched = "import resource, subprocess, sys; r = subprocess.run(sys.argv[1:], capture_output=True).stdout"
    watched += "; print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); print(r.partition(b'\\n')[0].decode())"
    ran = subprocess.run([sys.executable, "-c", watched, *command], input=data, capture_output=True, check=True)
    peak, _, line = ran.stdout.partition(b"\n")
    return line.strip(), int(peak) * 1024


def test_a_picture_of_one_column_is_judged_before_it_is_decoded() -> None:
    """Its 25,000,000 rows took 1.2 GiB: a decoder keeps a pointer for each."""
    line, peak = decode(bomb(1, 25_000_000), 25_000_000, 16_384, 1 << 30)
    assert json.loads(line) == {"refused": "too large", "width": 1, "height": 25_000_000}
    assert peak < 100 << 20


def test_the_largest_pictures_fit_into_the_memory_of_the_decoder() -> None:
    for size in ((5000, 5000), (500, 16_384)):
        out = BytesIO()
        Image.new("RGBA", size, (1, 2, 3, 4)).save(out, "PNG", compress_level=1)
        line, peak = decode(out.getvalue(), 25_000_000, 16_384, (64 << 20) + 16 * 25_000_000)
        assert json.loads(line) == {"width": size[0], "height": size[1], "orientation": 1}
        assert peak < 600 << 20


def test_a_picture_that_needs_more_memory_than_allowed_is_refused() -> None:
    out = BytesIO()
    Image.new("RGB", (4000, 4000)).save(out, "PNG", compress_level=1)
    line, peak = decode(out.getvalue(), 25_000_000, 16_384, 32 << 20)
    assert json.loads(line) == {"refused": "damaged"}
    assert peak < 200 << 20


@played
async def test_an_image_of_too_many_bytes_is_not_read_to_its_end(embedded_site: Site) -> None:
    ann = embedded_site.person()
    with embedded_site.gateway(image_bytes=100_000, uploads=2) as gateway:
        async with ann.rest(gateway) as http:
            answer = await http.post("/images", content=b"x" * 100_001, headers={"Content-Type": "image/png"})
            assert answer.status_code == 413 and answer.json()["error"]["code"] == "TooLarge"
            await http.post("/images", content=picture(), headers={"Content-Type": "image/png"})
            late = await http.post("/images", content=picture(), headers={"Content-Type": "image/png"})
            assert late.status_code == 429


@played
async def test_a_name_that_is_no_hash_finds_nothing(embedded_site: Site) -> None:
    ann = embedded_site.person()
    with embedded_site.gateway() as gateway:
        async with ann.rest(gateway) as http:
            for name in ("x", "0" * 64, "..%2f..%2fchat.db", "A" * 64):
                for path in (f"/images/{name}", f"/images/{name}/thumbnail"):
                    assert (await http.get(path)).status_code == 404


@pytest.mark.parametrize("kind", KINDS)
@played
async def test_what_a_camera_wrote_into_an_image_is_removed(embedded_site: Site, kind: str) -> None:
    secret, out = "taken at home 52.5163 13.3777", BytesIO()
    source = Image.new("RGB", (64, 32), "teal")
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, secret  # turned to the right; a description
    more = {"exif": exif} if kind != "image/gif" else {"comment": secret.encode()}
    source.save(out, KINDS[kind], **more)
    data = out.getvalue() + b"trailer " + secret.encode()
    assert secret.encode() in data
    ann = embedded_site.person()
    with embedded_site.gateway() as gateway:
        async with ann.rest(gateway) as http:
            made = await http.post("/images", content=data, headers={"Content-Type": kind})
            assert made.status_code == 201, made.text
            shown = (await http.get(f"/images/{made.json()['id']}")).content
    assert secret.encode() not in shown and hashlib.sha256(shown).hexdigest() == made.json()["id"]
    again, before = Image.open(BytesIO(shown)), Image.open(BytesIO(out.getvalue()))
    assert again.convert("RGB").tobytes() == before.convert("RGB").tobytes()
    if kind != "image/gif":
        assert dict(again.getexif()) == {0x0112: 6}
