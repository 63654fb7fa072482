"""The API as documents for programs: OpenAPI of REST, AsyncAPI of the topics and of Socket.IO, made from the types.

`scripts/chat_documents.py --write` writes both into docs/reference; a test compares them with the types and the routes.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from pabal.apps.chat import events
from pabal.apps.chat.gateway import bodies, images

_REF = "#/components/schemas/{name}"
_VERSION = "1.0.0"


class Call(NamedTuple):
    """A request: what it takes and what it answers."""

    words: str
    takes: type | None
    status: int
    gives: type | None
    query: tuple[str, ...] = ()
    token: bool = True


_PAGED = ("limit", "before")
CALLS: dict[tuple[str, str], Call] = {
    ("POST", "/auth/register"): Call("Register a user.", bodies.Registration, 201, bodies.UserOut, token=False),
    ("POST", "/auth/login"): Call("Log in.", bodies.Credentials, 200, bodies.LoginOut, token=False),
    ("POST", "/auth/logout"): Call("End the session of this token.", None, 200, bodies.Success),
    ("POST", "/auth/renew"): Call("Get a new token of the same session.", None, 200, bodies.LoginOut),
    ("GET", "/me"): Call("Who the token is for.", None, 200, bodies.UserOut),
    ("POST", "/me/name"): Call("Change the display name.", bodies.NewName, 200, bodies.UserOut),
    ("POST", "/me/password"): Call("Change the password, end other sessions.", bodies.NewPassword, 200, bodies.Success),
    ("GET", "/sessions"): Call("Where the user is logged in.", None, 200, bodies.SessionsOut),
    ("POST", "/sessions/{session_id}/end"): Call("End a session.", None, 200, bodies.Success),
    ("POST", "/rooms"): Call("Create a room.", bodies.NewRoom, 201, bodies.RoomOut),
    ("GET", "/rooms"): Call("The user's rooms, newest activity first.", None, 200, bodies.RoomsOut, _PAGED),
    ("POST", "/rooms/{room_id}/rename"): Call("Rename a room (owner).", bodies.RoomRenaming, 200, bodies.Success),
    ("POST", "/rooms/{room_id}/invitations"): Call("Make an invitation.", None, 201, bodies.InvitationMade),
    ("GET", "/rooms/{room_id}/invitations"): Call("Valid invitations.", None, 200, bodies.InvitationsOut),
    ("POST", "/rooms/{room_id}/invitations/{invitation_id}/revoke"): Call("Revoke one.", None, 200, bodies.Success),
    ("POST", "/invitations/look"): Call("Whose invitation it is.", bodies.Invited, 200, bodies.InvitationOut),
    ("POST", "/rooms/{room_id}/join"): Call("Join a room.", bodies.Joining, 200, bodies.RoomOut),
    ("POST", "/rooms/{room_id}/leave"): Call("Leave a room.", None, 200, bodies.Success),
    ("GET", "/rooms/{room_id}/members"): Call("Members.", None, 200, bodies.MembersOut, ("limit", "after")),
    ("POST", "/rooms/{room_id}/members/{user_id}/remove"): Call("Remove a member (owner).", None, 200, bodies.Success),
    ("GET", "/rooms/{room_id}/users"): Call("Names, also of users who left.", None, 200, bodies.UsersOut, ("ids",)),
    ("GET", "/rooms/{room_id}/messages"): Call("Messages.", None, 200, bodies.MessagesOut, (*_PAGED, "after")),
    ("GET", "/rooms/{room_id}/search"): Call("Search, newest first.", None, 200, bodies.MessagesOut, ("q", *_PAGED)),
    ("POST", "/rooms/{room_id}/read"): Call("Move the read mark.", bodies.Reading, 200, bodies.ReadOut),
    ("POST", "/images"): Call("Upload an image; the body is its bytes.", None, 201, images.Image),
    ("GET", "/images/{image_id}"): Call("An image.", None, 200, None),
    ("GET", "/images/{image_id}/thumbnail"): Call("A small one.", None, 200, None),
}

# Socket.IO: what clients emit, and what they are acknowledged with; what they hear is documented by example types.
EMITTED: dict[str, type] = {
    "joinRoom": bodies.JoinRoom,
    "leaveRoom": bodies.InRoom,
    "typing": bodies.InRoom,
    "sendMessage": bodies.SendMessage,
    "renew": bodies.Renewal,
}
TOPICS: dict[str, type] = {events.MESSAGES: events.MessageCreated, events.PERSISTED: events.MessagePersisted}


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document of REST."""
    types = {kind for call in CALLS.values() for kind in (call.takes, call.gives) if kind is not None}
    schemas, components = _schemas([*types, _Failure])
    paths: dict[str, Any] = {}
    for (method, path), call in CALLS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(path, call, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pabal chat", "version": _VERSION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
    }


def asyncapi() -> dict[str, Any]:
    """Return the AsyncAPI document of the topics, and of the events of Socket.IO."""
    heard = {"newMessage": bodies.MessageOut}
    types = {*TOPICS.values(), *EMITTED.values(), *heard.values()}
    schemas, components = _schemas(types)
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for name, kind, act in [
        *((name, kind, "receive") for name, kind in TOPICS.items()),
        *((f"socket.io:{name}", kind, "receive") for name, kind in EMITTED.items()),
        *((f"socket.io:{name}", kind, "send") for name, kind in heard.items()),
    ]:
        key = re.sub(r"[^A-Za-z0-9]", "_", name)
        channels[key] = {"address": name, "messages": {kind.__name__: {"payload": schemas[kind]}}}
        operations[f"{act}_{key}"] = {"action": act, "channel": {"$ref": f"#/channels/{key}"}}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Pabal chat", "version": _VERSION},
        "channels": channels,
        "operations": operations,
        "components": {"schemas": components},
    }


class _Error(msgspec.Struct):
    """Why a request was refused."""

    code: str
    message: str
    issues: list[dict[str, str]] = []


class _Failure(msgspec.Struct):
    """The body of every answer that is no success."""

    error: _Error


def _schemas(types: Any) -> tuple[dict[type, Any], dict[str, Any]]:
    listed = sorted(types, key=lambda kind: kind.__name__)
    found, components = msgspec.json.schema_components(listed, ref_template=_REF)
    return dict(zip(listed, found, strict=True)), dict(sorted(components.items()))


def _operation(path: str, call: Call, schemas: dict[type, Any]) -> dict[str, Any]:
    named = [(name, "path") for name in re.findall(r"{(\w+)}", path)] + [(name, "query") for name in call.query]
    done: dict[str, Any] = {"description": "done"}
    if call.gives is not None:
        done["content"] = {"application/json": {"schema": schemas[call.gives]}}
    refused = {"description": "refused", "content": {"application/json": {"schema": schemas[_Failure]}}}
    made: dict[str, Any] = {
        "summary": call.words,
        "parameters": [
            {"name": name, "in": where, "required": where == "path", "schema": {"type": "string"}}
            for name, where in named
        ],
        "responses": {str(call.status): done, "default": refused},
    }
    if call.takes is not None:
        made["requestBody"] = {"content": {"application/json": {"schema": schemas[call.takes]}}}
    if call.token:
        made["security"] = [{"token": []}]
    return made
