"""A client that is made from the OpenAPI document of a gateway, and knows nothing else."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from tests.gateway.conftest import Running


class Answered(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


def ask(address: str, method: str, path: str, body: object = None, **headers: str) -> Answered:
    """Send one request. A body of bytes is sent as it is."""
    parts = urlsplit(address)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    if body is not None:
        given = {"content-type": "application/json", **given}
    try:
        connection.request(method, path, data, given)
        answer = connection.getresponse()
        return Answered(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


class Failed(Exception):
    """An answer that is no success: its status and its error."""

    def __init__(self, answered: Answered) -> None:
        super().__init__(answered.document)
        self.status = answered.status
        self.error: dict[str, Any] = answered.document["error"]


class Client:
    """Calls the operations of the document by their ids: `client("publish", queue="jobs", body={…})`."""

    def __init__(self, running: Running, *, key: str = "", secret: str = "") -> None:
        self.address = running.address
        token = parse_qs(urlsplit(running.dashboard).query).get("token", [""])[0]
        basic = b64encode(f"{key}:{secret}".encode()).decode()
        self.authorization = f"Basic {basic}" if key else f"Bearer {token}"
        self.document = ask(self.address, "GET", "/openapi.json").document
        self._operations = {
            operation["operationId"]: (method.upper(), path, operation)
            for path, methods in self.document["paths"].items()
            for method, operation in methods.items()
        }

    def __call__(self, operation: str, *, body: object = None, **values: object) -> Any:
        method, path, described = self._operations[operation]
        query = {}
        for parameter in described["parameters"]:
            name = parameter["name"]
            if parameter["in"] == "path":
                path = path.replace(f"{{{name}}}", quote(str(values.pop(name)), safe=""))
            elif name in values:
                value = values.pop(name)
                query[name] = str(value).lower() if isinstance(value, bool) else str(value)
        assert not values, f"{operation} has no {', '.join(values)}"
        assert (body is not None) == ("requestBody" in described)
        text = f"?{urlencode(query)}" if query else ""
        answered = ask(self.address, method, path + text, body, authorization=self.authorization)
        if answered.status != 200:
            raise Failed(answered)
        if answered.headers["content-type"] == "application/octet-stream":
            return answered.body
        return answered.document

    @property
    def operations(self) -> set[str]:
        return set(self._operations)
