"""Imports go one way, third-party packages stay where they belong, and nothing unsafe is called."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src" / "pabal"
MODULES = sorted(SRC.rglob("*.py"))

VALUES = ("errors", "names", "clock", "ids", "jsontext", "message", "envelope", "policy")
CONTRACTS = ("store", "codec", "topic_store")
PRIMITIVES = ("durable", "filesystem", "watch")
BASE = (*VALUES, *CONTRACTS, *PRIMITIVES)
CORE = ("queues", "topics")

# Each part of the package, by the prefix of its path, and the parts that it may import beside itself. The longest
# prefix counts: `stores/files` has a row of its own, every other module of `stores/` follows the row of `stores`.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(VALUES, VALUES),
    **dict.fromkeys(CONTRACTS, (*VALUES, *CONTRACTS)),
    **dict.fromkeys(PRIMITIVES, (*VALUES, *PRIMITIVES)),
    "queues": (*VALUES, *CONTRACTS),
    "topics": (*VALUES, *CONTRACTS, "queues"),
    "codecs": (*VALUES, *CONTRACTS),
    "sql": BASE,
    "stores": (*BASE, "codecs", "sql"),
    "stores/files": (*BASE, "stores"),
    "stores/sqlite": (*BASE, "stores", "codecs", "sql"),
    "stores/postgres": (*BASE, "stores", "codecs", "sql"),
    "topic_stores": (*BASE, "sql"),
    "mailbox": (*BASE, "queues"),
    "connect": (*BASE, *CORE, "sql", "stores", "topic_stores", "mailbox"),
    "app": (*VALUES, *CONTRACTS, *CORE, "connect"),
    "aio": (*VALUES, *CONTRACTS, *CORE, "connect"),
    "runtime": BASE,
    "manager": (*BASE, "queues", "mailbox", "connect", "runtime"),
    "apps/ignite": (*BASE, *CORE, "codecs", "stores", "sql", "connect", "runtime", "watchers", "apps/needs"),
    "apps/kingdom": (*BASE, *CORE, "codecs", "stores", "connect", "runtime", "watchers", "apps/needs"),
    "apps/needs": VALUES,
    "apps/chat": (*BASE, *CORE, "sql", "connect", "runtime", "aio"),
    "apps": (),
    "mcp": (*BASE, *CORE, "codecs", "connect", "runtime", "apps/ignite"),
    "gateway": (*BASE, *CORE, "runtime", "aio", "apps/needs"),
    "watchers": (*BASE, "runtime"),
    "testing": (*VALUES, *CONTRACTS, "codecs", "queues", "connect"),
    "cli": (
        *BASE,
        *CORE,
        "app",
        "codecs",
        "stores",
        "connect",
        "connect_topics",
        "mailbox",
        "manager",
        "runtime",
        "watchers",
        "mcp",
        "gateway",
        "apps",
        "",
    ),
    "": (*VALUES, *CONTRACTS, *CORE, "app", "connect"),
}

# Packages with a face: from outside, only these names of theirs may be imported, and never an inner module.
FACES: dict[str, set[str]] = {
    "stores/files": {
        "FileStore",
        "Names",
        "Slot",
        "corrupt_reason",
        "read_failure",
        "safe_name",
        "short_boot",
        "short_token",
    },
    "stores/sqlite": {
        "BodyFolder",
        "SqliteStore",
        "Tables",
        "backup_database",
        "body_files",
        "read_database",
        "restore_database",
        "restore_hybrid",
        "salvage_store",
    },
    "stores/postgres": {"PostgresStore"},
    "topic_stores/sqlite": {"SqliteTopics"},
    "topic_stores/kafka": {"KafkaSettings", "KafkaTopics", "settings_of"},
}

# Each third-party package and the parts that may import it.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "typing_extensions": ("queues/delivery",),  # for type checkers alone
    "msgspec": (
        *VALUES,
        *CONTRACTS,
        "queues/schedules",
        "sql",
        "codecs",
        "runtime",
        "manager",
        "mailbox",
        "watchers",
        "apps",
        "mcp",
        "gateway",
    ),
    "mcp": ("mcp",),
    "mcp_types": ("mcp",),
    "sse_starlette": ("mcp/http",),  # comes with mcp
    "anyio": ("mcp",),
    "starlette": ("apps/chat",),
    "uvicorn": ("runtime/http_server",),
    "socketio": ("apps/chat",),
    "engineio": ("apps/chat",),
    "argon2": ("apps/chat",),
    "jwt": ("apps/chat",),
    "PIL": ("apps/chat",),
    "httpx2": ("watchers", "apps/ignite", "apps/kingdom"),
    "slack_sdk": ("apps/kingdom",),
    "cronsim": ("queues/cron",),
    "apsw": ("sql",),
    "psycopg": ("sql",),
    "confluent_kafka": ("topic_stores/kafka",),
    "fastjsonschema": ("policy",),
    "click": ("cli",),
    "yaml": ("codecs",),
    "pytest": ("testing",),
    "hypothesis": ("testing",),
}


def _parsed(path: Path) -> ast.Module:
    """Read a module. Python 3.11 fails now and then if its collector runs meanwhile: then it is done once more."""
    try:
        return ast.parse(path.read_text())
    except SystemError:
        return ast.parse(path.read_text())


def place_of(path: Path) -> str:
    """Return a module's path below the package: `stores/files/lease`, and `stores/files` for its `__init__`."""
    return "/".join(path.relative_to(SRC).with_suffix("").parts).removesuffix("__init__").removesuffix("/")


PLACES = {place_of(path): path for path in MODULES}


def below(place: str, parts: Iterable[str]) -> bool:
    return any(place == part or part and place.startswith(part + "/") for part in parts)


def row_of(place: str) -> str:
    """Return the part of the table that a place belongs to: the longest that is a prefix of it."""
    found = [part for part in MAY_IMPORT if below(place, [part])]
    assert found, f"{place} is not in the table: say where it stands"
    return max(found, key=len)


def imports_of(path: Path) -> set[tuple[str, str]]:
    """Return what a module imports: each module, with the name taken from it or an empty one."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Import):
            found.update((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, f"{path}: imports are absolute"
            found.update((node.module, alias.name) for alias in node.names)
    return found


def own_imports(path: Path) -> set[tuple[str, str]]:
    """Return the places inside the package that a module imports, each with the name taken from it."""
    found: set[tuple[str, str]] = set()
    for module, name in imports_of(path):
        if module == "pabal" or module.startswith("pabal."):
            place = module.removeprefix("pabal").removeprefix(".").replace(".", "/")
            inner = f"{place}/{name}".removeprefix("/")
            found.add((inner, "") if inner in PLACES else (place, name))
    return found


each_module = pytest.mark.parametrize("path", MODULES, ids=place_of)


@each_module
def test_imports_follow_the_table(path: Path) -> None:
    row = row_of(place_of(path))
    for place, _ in own_imports(path):
        assert below(place, (row, *MAY_IMPORT[row])), f"{row} must not import {place}"


@each_module
def test_what_has_a_face_is_imported_by_it(path: Path) -> None:
    here = place_of(path)
    for place, name in own_imports(path):
        for package, face in FACES.items():
            if below(place, [package]) and not below(here, [package]):
                assert place == package and name in face, f"{here} reaches into {place} for {name}"


def test_faces_are_what_their_packages_export() -> None:
    for package, face in FACES.items():
        exported = [
            ast.literal_eval(node.value)
            for node in _parsed(PLACES[package]).body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ]
        assert exported == [sorted(face)], package


@each_module
def test_third_party_packages_are_imported_in_one_place(path: Path) -> None:
    for module, _ in imports_of(path):
        top = module.partition(".")[0]
        if top not in sys.stdlib_module_names and top != "pabal":
            assert below(place_of(path), THIRD_PARTY.get(top, ())), f"{place_of(path)} must not import {top}"


def test_the_picture_in_the_page_is_drawn_from_the_imports() -> None:
    root = SRC.parent.parent
    command = [sys.executable, str(root / "scripts" / "draw_packages.py")]
    drawn = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    page = (root / "docs" / "architecture.md").read_text()
    assert f"```text\n{drawn}```" in page, "run scripts/draw_packages.py --write"


def test_the_table_of_places_is_short_and_leads_somewhere() -> None:
    page = (SRC.parent.parent / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (?!to change|---).* \|$", page, re.M)
    assert 0 < len(rows) < 20
    for place in (place for row in rows for place in re.findall("`([a-z_/*.]+[/.][a-z_/*.]*)`", row)):
        assert list(SRC.glob(place)), place


def test_the_root_lists_the_architecture() -> None:
    assert len([path for path in MODULES if path.parent == SRC]) <= 16


@each_module
def test_nothing_turns_data_into_code(path: Path) -> None:
    assert not {module for module, _ in imports_of(path)} & {"pickle", "marshal", "shelve"}
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"eval", "exec", "os.system", "yaml.load", "yaml.unsafe_load"}, f"{path}: {called}"
            for keyword in node.keywords:
                assert keyword.arg != "shell" or ast.unparse(keyword.value) == "False", f"{path}: shell=True"


@each_module
def test_only_durable_flushes_files(path: Path) -> None:
    if path.name == "durable.py":
        return
    for node in ast.walk(_parsed(path)):
        assert not (isinstance(node, ast.Attribute) and node.attr in {"fsync", "fdatasync"}), f"{path}: fsync"


@each_module
def test_only_jsontext_gives_types_to_msgspec(path: Path) -> None:
    """Elsewhere two threads that use a type for the first time would end the process (`jsontext._prepare`)."""
    if path.name == "jsontext.py":
        return
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.Call) and (called := ast.unparse(node.func)).startswith("msgspec."):
            typed = called.endswith(".Decoder") and node.args or "type" in {keyword.arg for keyword in node.keywords}
            assert called != "msgspec.convert" and not typed, f"{path}: {called}"


@each_module
def test_each_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(_parsed(path)), f"{path} has no docstring"
    assert path.stem not in {"utils", "common", "helpers", "base", "misc"}


def test_no_environment_is_read_outside_the_command_line() -> None:
    for place, path in PLACES.items():
        if not below(place, ["cli", "testing"]):
            assert "environ" not in path.read_text(), path


def test_values_of_a_log_line_have_names() -> None:
    """So each is a field of the line, and its event is always the same text."""
    calls = 0
    for path in MODULES:
        for node in ast.walk(_parsed(path)):
            if not (isinstance(node, ast.Call) and re.fullmatch(r"log\.\w+", ast.unparse(node.func))):
                continue
            values = node.args[2:] if ast.unparse(node.func) == "log.log" else node.args[1:]
            text = ast.unparse(node.args[0])
            assert len(values) <= 1 and not re.search(r"%[^(]", text), f"{path}:{node.lineno}: give the values by name"
            assert not text.startswith(("f'", 'f"')), f"{path}:{node.lineno}: the text must be fixed"
            calls += 1
    assert calls > 40
