"""The two protocols of SQS: JSON 1.0, named by `X-Amz-Target`, and forms with answers in XML, which older clients use.

Both carry the same parameters. A form writes a list or a map as `AttributeName.1=…`, `Attribute.1.Name=…`; one table
says how each is called there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from pabal import jsontext
from pabal.gateway.sqs.errors import SqsError

JSON_TYPE = "application/x-amz-json-1.0"
_NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
_TARGET = "AmazonSQS."
_MAPS = {"Attributes", "MessageAttributes", "MessageSystemAttributes", "Tags", "tags"}
_IN_FORM = {
    "AttributeNames": "AttributeName",
    "Attributes": "Attribute",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "MessageAttributeNames": "MessageAttributeName",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
    "TagKeys": "TagKey",
    "Tags": "Tag",
    "tags": "Tag",
}
_IN_XML = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Failed": "BatchResultErrorEntry",
    "Results": "ListMessageMoveTasksResultEntry",
    "Attributes": "Attribute",
    "MessageAttributes": "MessageAttribute",
    "Tags": "Tag",
}
_LEVELS = 16  # of the name of a parameter; the longest of SQS has six
_INDEX = re.compile("[0-9]{1,9}")
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Call(NamedTuple):
    """A request: the action, its parameters, and how its answer is to be written."""

    action: str
    given: dict[str, Any] | bytes  # as JSON, if they came so
    form: bool = False  # as a form: the answer is XML
    wants_json: bool = False  # as a form, with an answer in JSON


class Written(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def read_json(target: str, body: bytes) -> Call:
    """Read which action a request in JSON asks for."""
    if not target.startswith(_TARGET):
        raise SqsError("InvalidAction", f"The action {target} is not valid for this endpoint.")
    return Call(target.removeprefix(_TARGET), body or b"{}")


def read_form(text: str, path_url: str, accept: str) -> Call:
    """Read a request in a form or in the query of a URL; `path_url` is the URL of the queue that it was sent to."""
    try:
        parameters = dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=2000))
    except ValueError as exc:
        raise SqsError("MalformedQueryString", f"The query string is malformed: {exc}") from exc
    action = parameters.pop("Action", "")
    parameters.pop("Version", None)
    given = _shaped(_nested(parameters), action)
    if path_url:
        given.setdefault("QueueUrl", path_url)
    return Call(action, given, form=True, wants_json=accept == "application/json")


def _nested(parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return `A.1.B=x` as {"A": {"1": {"B": "x"}}}."""
    tree: dict[str, Any] = {}
    for name, value in parameters.items():
        branch = tree
        *path, last = name.split(".")
        if len(path) > _LEVELS:
            raise SqsError("MalformedQueryString", f"{name:.80} has more than {_LEVELS} parts.")
        for part in path:
            below = branch.setdefault(part, {})
            if not isinstance(below, dict):
                raise SqsError("MalformedQueryString", f"{name} and one of its parts are both given.")
            branch = below
        branch[last] = value
    return tree


def _shaped(tree: Mapping[str, Any], action: str) -> dict[str, Any]:
    """Return the parameters of a form under the names of the model."""
    names = {form: name for name, form in _IN_FORM.items()}
    names[f"{action}RequestEntry"] = "Entries"
    if action == "CreateQueue":
        names["Tag"] = "tags"
    elif action == "TagQueue":
        names["Tag"] = "Tags"
    given: dict[str, Any] = {}
    for key, value in tree.items():
        name = names.get(key, key)
        if name not in _IN_FORM and name != "Entries":
            given[name] = value
        elif not isinstance(value, dict):
            given[name] = [value] if name not in _MAPS else value
        elif name in _MAPS:
            given[name] = {str(each.get("Name", each.get("Key", ""))): each.get("Value", "") for each in _each(value)}
        else:
            given[name] = [_shaped(each, action) if isinstance(each, dict) else each for each in _members(value)]
    return given


def _members(value: Mapping[str, Any]) -> list[Any]:
    """Return the members of a list in the order of their numbers."""
    numbered = sorted((key for key in value if _INDEX.fullmatch(key)), key=int)
    return [value[key] for key in numbered] or [value]


def _each(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (each for each in _members(value) if isinstance(each, Mapping))


def write_answer(call: Call, result: Mapping[str, Any] | None, request_id: str) -> Written:
    """Write the answer of an action in the protocol of its request."""
    if not call.form:
        return _written(200, JSON_TYPE, jsontext.encode(result) if result is not None else b"", request_id)
    if call.wants_json:
        document = {f"{call.action}Result": _as_in_xml(result, call.action)} if result is not None else {}
        named = {f"{call.action}Response": {**document, "ResponseMetadata": {"RequestId": request_id}}}
        return _written(200, "application/json", jsontext.encode(named), request_id)
    inner = "" if result is None else f"<{call.action}Result>{_elements(result, call.action)}</{call.action}Result>"
    metadata = f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
    text = f'<{call.action}Response xmlns="{_NAMESPACE}">{inner}{metadata}</{call.action}Response>'
    return _written(200, "text/xml", _document(text), request_id)


def write_error(error: SqsError, request_id: str, *, form: bool, wants_json: bool = False) -> Written:
    """Write a refusal in the protocol of its request."""
    kind = "Sender" if error.by_sender else "Receiver"
    if not form:
        body = jsontext.encode({"__type": f"com.amazonaws.sqs#{error.shape}", "message": error.message})
        written = _written(error.status, JSON_TYPE, body, request_id)
        written.headers["x-amzn-query-error"] = f"{error.code};{kind}"
        return written
    if wants_json:
        about = {"Type": kind, "Code": error.code, "Message": error.message, "Detail": None}
        body = jsontext.encode({"Error": about, "RequestId": request_id})
        return _written(error.status, "application/json", body, request_id)
    about_xml = f"<Type>{kind}</Type><Code>{_text(error.code)}</Code><Message>{_text(error.message)}</Message><Detail/>"
    inner = f"<Error>{about_xml}</Error><RequestId>{request_id}</RequestId>"
    text = f'<ErrorResponse xmlns="{_NAMESPACE}">{inner}</ErrorResponse>'
    return _written(error.status, "text/xml", _document(text), request_id)


def write_unknown_operation(request_id: str) -> Written:
    """Write the answer to a request without an action."""
    return _written(404, "text/xml", b"<UnknownOperationException/>\n", request_id)


def _written(status: int, kind: str, body: bytes, request_id: str) -> Written:
    return Written(status, {"content-type": kind, "x-amzn-RequestId": request_id}, body)


def _document(text: str) -> bytes:
    return f'<?xml version="1.0"?>{text}'.encode()


def _elements(result: Mapping[str, Any], action: str) -> str:
    return "".join(_element(name, value, action) for name, value in result.items())


def _as_in_xml(result: Mapping[str, Any], action: str) -> dict[str, Any]:
    """Return a result under the names of XML, for those who send forms and want JSON."""
    shown: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, list):
            tag = _IN_XML.get(name, f"{action}ResultEntry")
            shown[tag] = [_as_in_xml(each, action) if isinstance(each, Mapping) else each for each in value]
        elif name in _MAPS:
            key = "Key" if _IN_XML[name] == "Tag" else "Name"
            shown[_IN_XML[name]] = [{key: each, "Value": value[each]} for each in value]
        else:
            shown[name] = value
    return shown


def _element(name: str, value: Any, action: str) -> str:
    if isinstance(value, list):
        tag = _IN_XML.get(name, f"{action}ResultEntry")
        return "".join(_tagged(tag, each, action) for each in value)
    if name in _MAPS:
        tag = _IN_XML[name]
        key = "Key" if tag == "Tag" else "Name"
        return "".join(_tagged(tag, {key: each, "Value": value[each]}, action) for each in value)
    return _tagged(name, value, action)


def _tagged(tag: str, value: Any, action: str) -> str:
    if isinstance(value, Mapping):
        return f"<{tag}>{_elements(value, action)}</{tag}>"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"<{tag}>{_text(text)}</{tag}>"


def _text(text: str) -> str:
    """Escape a text. A character that XML cannot carry is written as a question mark; SQS lets no such text in."""
    return escape(_NOT_IN_XML.sub("?", text), {"\r": "&#13;", '"': "&quot;"})
