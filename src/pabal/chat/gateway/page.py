"""The web page, as it lies in the package: always asked for anew, and answered with 304 while it is the same."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parent.parent / "web"
# Pictures are fetched with a token, so they come as blobs; a preview of what is about to be sent too.
CSP = (
    "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)


class Page(StaticFiles):
    """The files of the page with their headers."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER, html=True)

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        response.headers["Content-Security-Policy"] = CSP
        return response
