"""Imports go one way, third-party packages stay where they belong, and nothing unsafe is called."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "pabal"

VALUES = {"errors", "names", "clock", "ids", "jsontext", "message", "envelope", "policy", "rules"}
CONTRACTS = {"store", "codec", "topic", "topic_limits"}
PRIMITIVES = {"durable", "watch"}
CORE = {
    "judge",
    "schema",
    "in_force",
    "calling",
    "drafting",
    "settling",
    "renewal",
    "delivery",
    "waiter",
    "queue",
    "worker",
    "moving",
    "passing",
    "appending",
    "dead_records",
    "caution",
    "lanes",
    "handling",
    "consuming",
    "bridge",
}

# Each part of the package and what it may import beside itself.
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(VALUES, VALUES),
    **dict.fromkeys(CONTRACTS, VALUES | CONTRACTS),
    **dict.fromkeys(PRIMITIVES, VALUES),
    **dict.fromkeys(CORE, VALUES | CONTRACTS | CORE),
    "sql": VALUES | CONTRACTS | PRIMITIVES,
    "stores": VALUES | CONTRACTS | PRIMITIVES | {"sql", "codecs"},
    "codecs": VALUES | CONTRACTS,
    "topics": VALUES | CONTRACTS | PRIMITIVES | {"sql", "stores"},  # the bells and places of the stores
    "mailbox": VALUES | CONTRACTS | PRIMITIVES | CORE,
    "connect": VALUES | CONTRACTS | CORE | {"stores", "mailbox"},
    "connect_topics": VALUES | CONTRACTS | CORE | {"topics", "connect"},
    "testing": VALUES | CONTRACTS | {"codecs"},
    "runtime": VALUES | CONTRACTS | PRIMITIVES,
    "manager": VALUES | CONTRACTS | PRIMITIVES | CORE | {"mailbox", "connect", "runtime"},
    "ignite": VALUES | CONTRACTS | PRIMITIVES | CORE | {"codecs", "stores", "sql", "connect", "runtime"},
    "kingdom": VALUES | CONTRACTS | PRIMITIVES | CORE | {"codecs", "stores", "connect", "runtime"},
    "chat": VALUES | CONTRACTS | PRIMITIVES | CORE | {"connect", "connect_topics", "sql", "stores", "runtime"},
    "cli": VALUES
    | CONTRACTS
    | PRIMITIVES
    | CORE
    | {
        "codecs",
        "stores",
        "connect",
        "mailbox",
        "runtime",
        "manager",
        "ignite",
        "kingdom",
        "chat",
        "__init__",
        "connect_topics",
    },
    "__init__": VALUES | CONTRACTS | CORE | {"connect", "connect_topics"},
}

# Each third-party package and the parts that may import it.
THIRD_PARTY: dict[str, set[str]] = {
    "msgspec": VALUES | CONTRACTS | {"codecs", "schema", "runtime", "manager", "mailbox", "ignite", "kingdom", "chat"},
    "psutil": {"runtime"},
    "starlette": {"chat"},
    "uvicorn": {"chat"},
    "h11": {"chat"},
    "socketio": {"chat"},
    "engineio": {"chat"},
    "argon2": {"chat"},
    "jwt": {"chat"},
    "PIL": {"chat"},
    "httpx2": {"ignite", "kingdom"},
    "slack_sdk": {"kingdom"},
    "cronsim": {"kingdom"},
    "apsw": {"sql"},
    "psycopg": {"sql"},
    "confluent_kafka": {"topics"},
    "fastjsonschema": {"schema"},
    "click": {"cli"},
    "yaml": {"codecs"},
    "pytest": {"testing"},
    "hypothesis": {"testing"},
}

MODULES = sorted(SRC.rglob("*.py"))


def part_of(path: Path) -> str:
    relative = path.relative_to(SRC)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            found.add(node.module)
            if node.module == "pabal":
                found.remove("pabal")
                found.update(f"pabal.{alias.name}" for alias in node.names)
    return found


def own_part(module: str) -> str:
    parts = module.split(".")
    if len(parts) == 1:
        return "__init__"
    return parts[1] if (SRC / parts[1]).is_dir() or (SRC / f"{parts[1]}.py").exists() else "__init__"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_follow_the_table(path: Path) -> None:
    part = part_of(path)
    assert part in MAY_IMPORT, f"{part} is not in the table: say where it stands"
    allowed = MAY_IMPORT[part] | {part}
    for module in imports_of(path):
        if module == "pabal" or module.startswith("pabal."):
            assert own_part(module) in allowed, f"{part} must not import {module}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_third_party_packages_are_imported_in_one_place(path: Path) -> None:
    import sys

    for module in imports_of(path):
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names or top == "pabal":
            continue
        assert part_of(path) in THIRD_PARTY.get(top, set()), f"{part_of(path)} must not import {top}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_nothing_turns_data_into_code(path: Path) -> None:
    assert not imports_of(path) & {"pickle", "marshal", "shelve"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"eval", "exec", "os.system", "yaml.load", "yaml.unsafe_load"}, f"{path}: {called}"
            for keyword in node.keywords:
                assert keyword.arg != "shell" or ast.unparse(keyword.value) == "False", f"{path}: shell=True"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_only_durable_flushes_files(path: Path) -> None:
    if path.name == "durable.py":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        assert not (isinstance(node, ast.Attribute) and node.attr in {"fsync", "fdatasync"}), f"{path}: fsync"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SRC)))
def test_each_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"
    assert path.stem not in {"utils", "common", "helpers", "base", "misc"}


def test_no_environment_is_read_outside_the_command_line() -> None:
    for path in MODULES:
        if part_of(path) not in {"cli", "testing"}:
            assert "environ" not in path.read_text(), path
