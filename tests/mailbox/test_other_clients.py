"""The example clients in C and in sh, against a real manager."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mailbox.users import ALICE, BOB, GROUP, STRANGER, managed
from tests.manager.running import Running

CLIENTS = Path(__file__).parent.parent.parent / "examples/mailbox-clients"
Ran = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have a C compiler: run scripts/system-packages")
        pytest.skip("needs a C compiler: run scripts/system-packages")
    program = tmp_path_factory.mktemp("compiled") / "mailbox"
    strict = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-O2")
    subprocess.run([compiler, *strict, "-o", program, CLIENTS / "mailbox.c"], check=True)
    return program


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("manager")
    (folder / "pabal.toml").write_text('[ipc]\nrequestsDir = "in"\nresponsesDir = "out"\n')
    running = Running(folder)
    running.wait_until_up()
    yield running
    running.end()


@pytest.fixture(params=["c", "sh"])
def client(request: pytest.FixtureRequest, manager: Running) -> Callable[..., Ran]:
    program = request.getfixturevalue("compiled") if request.param == "c" else CLIENTS / "mailbox.sh"
    name = f"{request.param}-1"

    def run(*words: str) -> Ran:
        command = [str(program), str(manager.ipc), name, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    return run


def taken(ran: Ran) -> tuple[str, str, object]:
    """Return key, lease and payload of what was consumed, as either client prints it."""
    assert ran.returncode == 0, ran
    if ran.stdout.startswith("{"):
        data = json.loads(ran.stdout)["data"]
        return data["message"]["messageKey"], data["lease"]["leaseId"], data["message"]["payload"]
    key, lease, payload = ran.stdout.splitlines()
    return key, lease, json.loads(payload)


@pytest.mark.parametrize(
    "body",
    [
        {"temp": 36.5},
        [1, {"a": ["}", "{"]}],
        7,
        None,
        '"text, ]"',
        {"key": "한글 ü"},
        {"data": {"message": None, "lease": None}, "ok": False},
    ],
)
def test_a_message_goes_through(client: Callable[..., Ran], body: object) -> None:
    text = json.dumps(body) if not isinstance(body, str) else json.dumps(json.dumps(body))
    published = client("publish", "jobs", text)
    if "\\" in text and published.args[0].endswith(".sh"):
        assert published.returncode == 2 and "a backslash is not supported" in published.stderr
        return
    assert published.returncode == 0, published
    key, lease, payload = taken(client("consume", "jobs"))
    assert (key, payload) == (published.stdout.strip(), body)
    assert client("ack", key, lease).returncode == 0
    assert client("consume", "jobs").returncode == 1
    late = client("ack", key, "0123456789abcdef")
    assert late.returncode == 2 and '"code":' in late.stderr


def test_a_consumer_waits_and_is_woken(client: Callable[..., Ran], manager: Running) -> None:
    *start, _, _ = client("request", "queues", "{}").args
    name = f"waiting-{start[2]}"  # a queue for each client
    consumer = subprocess.Popen([*start[:3], "consume", name, "20000"], stdout=subprocess.PIPE, text=True)
    assert client("publish", name, '["now"]').returncode == 0
    out, _ = consumer.communicate(timeout=60)
    key, lease, payload = taken(subprocess.CompletedProcess((), consumer.returncode, out))
    assert payload == ["now"]
    assert client("nack", key, lease, "try again").returncode == 0
    again = client("request", "status", json.dumps({"queue": name}))
    assert json.loads(again.stdout)["data"]["metrics"]["delayed"] == 1


def test_a_wrong_use_is_refused(client: Callable[..., Ran]) -> None:
    assert client("publish", "jobs").returncode == 2
    assert client("fly", "jobs", "1").returncode == 2
    refused = client("request", "fly", "{}")
    assert refused.returncode == 2 and "UNKNOWN_COMMAND" in refused.stderr


@pytest.mark.parametrize(
    "words", [("publish", "jobs", "1"), ("consume", "jobs"), ("ack", "k", "l"), ("nack", "k", "l", "no")]
)
def test_without_a_mailbox_there_is_no_answer(client: Callable[..., Ran], words: tuple[str, ...]) -> None:
    program = client("request", "queues", "{}").args[0]
    ran = subprocess.run([program, "/nowhere", "me", *words], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 3 and "/nowhere" in ran.stderr, ran


@pytest.mark.root
@pytest.mark.parametrize("kind", ["c", "sh"])
def test_each_client_may_be_a_user_of_its_own(kind: str, request: pytest.FixtureRequest) -> None:
    """There a client reads its answers and cannot remove them."""
    program = request.getfixturevalue("compiled") if kind == "c" else CLIENTS / "mailbox.sh"
    with managed() as mailbox, tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        copy = shutil.copy(program, folder)

        def run(uid: int, name: str, *words: str) -> Ran:
            command = [str(copy), str(mailbox), name, *words]
            groups = [] if uid == STRANGER else [GROUP]
            return subprocess.run(
                command, user=uid, group=uid, extra_groups=groups, cwd="/", capture_output=True, text=True, timeout=60
            )

        published = run(ALICE, "alice", "publish", "jobs", '{"n": 1}')
        assert published.returncode == 0 and published.stdout.startswith("msg:jobs:"), published
        key, lease, payload = taken(run(BOB, "bob", "consume", "jobs", "5000"))
        assert key == published.stdout.strip() and payload == {"n": 1}
        assert run(ALICE, "alice", "ack", key, "wrong").returncode == 2
        assert run(BOB, "bob", "ack", key, lease).returncode == 0
        assert run(BOB, "bob", "consume", "jobs").returncode == 1
        assert run(STRANGER, "alice", "publish", "jobs", "2").returncode == 3
