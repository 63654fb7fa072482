"""The OpenAPI document of the HTTP interface, made from the table of its calls and their types."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from pabal.gateway.api import types
from pabal.gateway.api.calls import CALLS, Call

VERSION = "1"
_REF = "#/components/schemas/{name}"


def openapi() -> dict[str, Any]:
    """Return the document, as OpenAPI 3.1."""
    kinds = [kind for call in CALLS for kind in (call.query, call.body, call.answer) if kind is not None]
    schemas, components = msgspec.json.schema_components([*kinds, types.Refusal], ref_template=_REF)
    found = dict(zip(map(repr, [*kinds, types.Refusal]), schemas, strict=True))
    paths: dict[str, Any] = {}
    for call in CALLS:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call, found, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pabal", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "key": {"type": "http", "scheme": "basic"},
            },
        },
        "security": [{"token": []}, {"key": []}],
    }


def _operation(call: Call, schemas: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", call.path)
    ]
    if call.query is not None:
        fields = components[call.query.__name__]["properties"]
        parameters += [{"name": name, "in": "query", "required": False, "schema": of} for name, of in fields.items()]
    made: dict[str, Any] = {
        "operationId": call.act.__name__,
        "summary": call.words,
        "parameters": parameters,
        "responses": {"200": _content("done", schemas[repr(call.answer)])},
    }
    if call.answer is bytes:
        made["responses"]["200"]["content"] = {"application/octet-stream": {}}
    made["responses"]["default"] = _content("refused", schemas[repr(types.Refusal)])
    if call.body is not None:
        made["requestBody"] = {**_content("", schemas[repr(call.body)]), "required": True}
        del made["requestBody"]["description"]
    return made


def _content(words: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": words, "content": {"application/json": {"schema": schema}}}
