"""The schema that soldiers get says what the type of their result says, no more and no less."""

import json
from pathlib import Path
from typing import Any

import fastjsonschema
import msgspec
import pytest

from pabal.apps import kingdom
from pabal.apps.kingdom.documents import NEEDED, SoldierResult, read
from pabal.apps.kingdom.home import SCHEMA
from pabal.errors import InvalidBody
from tests.apps.kingdom.realm import Realm

SHIPPED = Path(kingdom.__file__).parent / SCHEMA
SOUND: dict[str, Any] = {"task_id": "task-20260207-001", "status": "success", "summary": "s"}


def generated() -> dict[str, Any]:
    """Return the schema of the type, in draft 7."""
    _, parts = msgspec.json.schema_components([SoldierResult], ref_template="#/definitions/{name}")
    conditions = [
        {
            "if": {"properties": {"status": {"const": status}}},
            "then": {"required": [name], "properties": {name: {"minLength": 1}}},
        }
        for status, name in NEEDED.items()
    ]
    head = {"$schema": "http://json-schema.org/draft-07/schema#"}
    return {**head, **parts.pop("SoldierResult"), "allOf": conditions, "definitions": parts}


def test_the_shipped_schema_is_that_of_the_type() -> None:
    wanted = json.dumps(generated(), indent=2) + "\n"
    assert SHIPPED.read_text() == wanted, f"write this into {SCHEMA} of the package:\n{wanted}"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"status": "failed"},
        {"status": "failed", "error": ""},
        {"status": "failed", "error": "quota"},
        {"status": "killed", "error": "signal 9"},
        {"status": "needs_human"},
        {"status": "needs_human", "question": "merge?", "options": ["yes", "no"], "expire_seconds": 60},
        {"status": "needs_human", "question": "merge?", "kind": "confirm"},
        {"status": "needs_human", "question": "merge?", "kind": "guess"},
        {"status": "needs_human", "question": "merge?", "expire_seconds": -1},
        {"status": "skipped", "reason": "small"},
        {"status": "skipped"},
        {"status": "done"},
        {"notify_channel": "C0TEAM"},
        {"notify_channel": "#general"},
        {"proclamation": {"channel": "C1", "message": "m" * 3000}},
        {"proclamation": {"channel": "C1", "message": "m" * 3001}},
        {"proclamation": {"channel": "C1", "message": ""}},
        {"proclamation": {"channel": "C1", "message": "m", "urgency": "high"}},
        {"memory_updates": ["one"]},
        {"memory_updates": [1]},
        {"mood": "great"},
        {"task_id": "task-20260207-1000"},
        {"task_id": "task-1"},
        {"summary": None},
    ],
)
def test_schema_and_type_take_the_same_results(fields: dict[str, Any]) -> None:
    def is_taken(check: Any, refusal: type[Exception]) -> bool:
        try:
            check({**SOUND, **fields})
        except refusal:
            return False
        return True

    schema = fastjsonschema.compile(json.loads(SHIPPED.read_text()), use_default=False)
    by_type = is_taken(lambda document: read(SoldierResult, document), InvalidBody)
    assert is_taken(schema, fastjsonschema.JsonSchemaException) == by_type


def test_a_home_has_the_schema_of_this_release_and_its_soldiers_find_it(realm: Realm) -> None:
    (realm.root / SCHEMA).write_text("of an older release")
    realm.home.prepare()
    assert (realm.root / SCHEMA).read_bytes() == SHIPPED.read_bytes()
    script = """\
import json, os
fields = json.load(open(os.environ["KINGDOM_SCHEMA_PATH"]))["required"]
open(os.environ["KINGDOM_RESULT_PATH"], "w").write(json.dumps(dict.fromkeys(fields, "success")))
"""
    realm.general(script=script)
    realm.event()
    realm.run_kingdom()
    realm.lead()
    assert [result["status"] for result in realm.results()] == ["success"]
