"""JSON Schemas that must not take the process with them."""

import pytest

from pabal.errors import InvalidPolicy, ValidationFailed
from pabal.jsontext import Json
from pabal.policy.validation import checker


def test_a_schema_that_refers_to_itself_without_end_is_a_refusal() -> None:
    with pytest.raises(ValidationFailed, match="without end"):
        checker({"$ref": "#"})(1)


def test_a_schema_may_refer_to_itself_for_what_is_nested() -> None:
    tree: dict[str, Json] = {"type": "object", "additionalProperties": {"$ref": "#"}}
    check = checker(tree)
    assert check({"a": {"b": {}}}) == {"a": {"b": {}}}
    with pytest.raises(ValidationFailed):
        check({"a": {"b": 1}})


@pytest.mark.parametrize("place", ["http://127.0.0.1:9/x.json", "file:///etc/hostname", "data:,1"])
def test_a_schema_fetches_nothing_from_elsewhere(place: str) -> None:
    with pytest.raises(InvalidPolicy, match="in the schema itself"):
        checker({"$ref": place})
