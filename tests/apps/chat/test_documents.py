"""The OpenAPI and AsyncAPI documents say what the types and the routes say."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from starlette.routing import Route

from pabal.apps.chat.gateway.documents import CALLS, EMITTED, asyncapi, openapi
from pabal.apps.chat.gateway.rest import ImageEndpoints, MessageEndpoints
from pabal.apps.chat.gateway.rest_accounts import AccountEndpoints
from pabal.apps.chat.gateway.rest_rooms import RoomEndpoints
from tests.apps.chat.gateways import Site

ROOT = Path(__file__).parents[3]


def test_the_files_are_what_the_types_say() -> None:
    ran = subprocess.run([sys.executable, ROOT / "scripts" / "chat_documents.py"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_every_route_and_every_event_stands_in_them(embedded_site: Site) -> None:
    with embedded_site.gateway() as running:
        gateway = running.gateway
        context, rates, sockets = gateway._context, gateway._rates, gateway._sockets
        endpoints: list[Any] = [
            AccountEndpoints(context, rates, sockets),
            RoomEndpoints(context, sockets),
            MessageEndpoints(context),
            ImageEndpoints(context, rates),
        ]
        routes: list[Route] = [route for found in endpoints for route in found.routes(lambda endpoint: endpoint)]
        served = {(method, route.path) for route in routes for method in route.methods or () if method != "HEAD"}
        handled = set(running.gateway.server.handlers["/"]) - {"connect", "disconnect"}
    assert served == set(CALLS)
    assert handled == {*EMITTED, "heartbeat"}  # which has no body
    paths = openapi()["paths"]
    assert {(method.upper(), path) for path, found in paths.items() for method in found} == served
    page = (ROOT / "docs" / "reference" / "chat-api.md").read_text().replace("{id}", "{room_id}")
    for _, path in served:
        assert path.split("/")[1] in page, path
    addresses = [channel["address"] for channel in asyncapi()["channels"].values()]
    assert {"chat.messages.v1", "chat.messages.persisted.v1", "socket.io:sendMessage"} <= set(addresses)
