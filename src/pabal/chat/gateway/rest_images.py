"""Images: raw bytes in, the same bytes or a small picture out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from pabal.chat.gateway.answers import RequestRefused, answer, bytes_of, too_often
from pabal.chat.gateway.images import TYPES
from pabal.chat.gateway.parts import Parts, Rates
from pabal.chat.gateway.rest import Door
from pabal.chat.gateway.tokens import Login

_HEADERS = {
    "Cache-Control": "private, max-age=31536000, immutable",  # the name is the hash of the bytes
    "Content-Security-Policy": "default-src 'none'",
    "Content-Disposition": "inline",
}


class ImageEndpoints:
    def __init__(self, parts: Parts, rates: Rates) -> None:
        self._parts, self._rates = parts, rates

    def routes(self, door: Door) -> list[Route]:
        return [
            Route("/images", door(self.upload), methods=["POST"]),
            Route("/images/{image_id}", door(self.show), methods=["GET"]),
            Route("/images/{image_id}/thumbnail", door(self.show_small), methods=["GET"]),
        ]

    async def upload(self, request: Request, login: Login) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in TYPES:
            raise RequestRefused(415, "TypeRefused", f"an image is one of {', '.join(TYPES)}; found {kind!r:.40}")
        if wait := self._rates.uploads.take(login.user_id):
            raise too_often(wait)
        data = await bytes_of(request, self._parts.limits.image_bytes)
        return answer(await self._parts.images.keep(data, kind), 201)

    async def show(self, request: Request, login: Login) -> Response:
        return await self._file(request, thumbnail=False)

    async def show_small(self, request: Request, login: Login) -> Response:
        return await self._file(request, thumbnail=True)

    async def _file(self, request: Request, *, thumbnail: bool) -> Response:
        found = await self._parts.images.path(request.path_params["image_id"], thumbnail=thumbnail)
        if found is None:
            raise RequestRefused(404, "ImageUnknown", "there is no such image")
        path, kind = found
        return FileResponse(path, media_type=kind, headers=_HEADERS)
