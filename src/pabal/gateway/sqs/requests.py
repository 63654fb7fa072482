"""The parameters of each action, as the model of SQS has them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from pabal import jsontext
from pabal.errors import InvalidInput
from pabal.gateway.sqs.errors import SqsError, missing


class Parameters(msgspec.Struct, frozen=True, rename="pascal", kw_only=True):
    """Parameters that an action does not know are ignored, as the service does."""


class OfQueue(Parameters, frozen=True, kw_only=True):
    queue_url: str


class Attribute(Parameters, frozen=True, kw_only=True):
    """An attribute of a message. A binary value is in base64."""

    data_type: str
    string_value: str | None = None
    binary_value: str | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[str] | None = None


class CreateQueue(Parameters, frozen=True, kw_only=True):
    queue_name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = msgspec.field(default_factory=dict, name="tags")


class GetQueueUrl(Parameters, frozen=True, kw_only=True):
    queue_name: str


class ListQueues(Parameters, frozen=True, kw_only=True):
    queue_name_prefix: str = ""
    next_token: str = ""
    max_results: int | None = None


class ListDeadLetterSourceQueues(OfQueue, frozen=True, kw_only=True):
    next_token: str = ""
    max_results: int | None = None


class GetQueueAttributes(OfQueue, frozen=True, kw_only=True):
    attribute_names: list[str] = []


class SetQueueAttributes(OfQueue, frozen=True, kw_only=True):
    attributes: dict[str, str]


class NewMessage(Parameters, frozen=True, kw_only=True):
    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, Attribute] = {}
    message_system_attributes: dict[str, Attribute] = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessage(NewMessage, frozen=True, kw_only=True):
    queue_url: str


class SendEntry(NewMessage, frozen=True, kw_only=True):
    id: str


class SendMessageBatch(OfQueue, frozen=True, kw_only=True):
    entries: list[SendEntry]


class ReceiveMessage(OfQueue, frozen=True, kw_only=True):
    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    max_number_of_messages: int = 1
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class LookAtMessages(Parameters, frozen=True, kw_only=True):
    """The look of LocalStack, which is no action of SQS."""

    queue_url: str = ""
    show_invisible: bool = False
    show_delayed: bool = False


class DeleteMessage(OfQueue, frozen=True, kw_only=True):
    receipt_handle: str


class DeleteEntry(Parameters, frozen=True, kw_only=True):
    id: str
    receipt_handle: str


class DeleteMessageBatch(OfQueue, frozen=True, kw_only=True):
    entries: list[DeleteEntry]


class ChangeMessageVisibility(OfQueue, frozen=True, kw_only=True):
    receipt_handle: str
    visibility_timeout: int


class VisibilityEntry(Parameters, frozen=True, kw_only=True):
    id: str
    receipt_handle: str
    visibility_timeout: int = 0


class ChangeMessageVisibilityBatch(OfQueue, frozen=True, kw_only=True):
    entries: list[VisibilityEntry]


class TagQueue(OfQueue, frozen=True, kw_only=True):
    tags: dict[str, str]


class UntagQueue(OfQueue, frozen=True, kw_only=True):
    tag_keys: list[str]


class AddPermission(OfQueue, frozen=True, kw_only=True):
    label: str
    account_ids: list[str] = msgspec.field(name="AWSAccountIds")
    actions: list[str]


class RemovePermission(OfQueue, frozen=True, kw_only=True):
    label: str


class StartMessageMoveTask(Parameters, frozen=True, kw_only=True):
    source_arn: str
    destination_arn: str = ""
    max_number_of_messages_per_second: int | None = None


class ListMessageMoveTasks(Parameters, frozen=True, kw_only=True):
    source_arn: str
    max_results: int = 1


class CancelMessageMoveTask(Parameters, frozen=True, kw_only=True):
    task_handle: str


_decoders: dict[type[Any], Callable[[bytes], Any]] = {}


def read(kind: type[Any], given: dict[str, Any] | bytes) -> Any:
    """Return the parameters of an action; numbers may be given as text, as forms do."""
    if isinstance(given, bytes):
        if b"\\u" not in given:  # else there may be a lone surrogate
            with suppress(ValueError, RecursionError):  # the slow way gives the better error, and takes null for absent
                return (_decoders.get(kind) or _new_decoder(kind))(given)
        given = _object(given)
    known = {key: value for key, value in given.items() if value is not None}
    try:
        return jsontext.convert(known, kind, strict=False)
    except msgspec.ValidationError as exc:
        said = str(exc)
        if "missing required field `" in said:
            raise missing(said.split("`")[1]) from exc
        raise SqsError("SerializationException", f"The request cannot be read: {said}.") from exc


def _new_decoder(kind: type[Any]) -> Callable[[bytes], Any]:
    return _decoders.setdefault(kind, jsontext.decoder(kind, strict=False))


def _object(body: bytes) -> dict[str, Any]:
    try:
        given = jsontext.read(body)
    except InvalidInput as exc:
        raise SqsError("SerializationException", f"The body is no JSON: {exc}") from exc
    if not isinstance(given, dict):
        raise SqsError("SerializationException", "The body must be a JSON object.")
    return given
