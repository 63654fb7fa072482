"""`pabal takeover`: trees of the original system become stores, whole, and are not changed; nothing takes a part."""

import json
import os
from pathlib import Path
from zlib import crc32

import pytest

from pabal.connect import connect
from pabal.errors import StoreRefused
from pabal.store import Entry, State
from tests.cli.command import Pabal
from tests.stores.original_trees import FAR, POLICY, FileTree, HybridTree, snapshot
from tests.stores.test_seed_database import AT


def entries(pabal: Pabal, queue: str = "telemetry") -> dict[str, Entry]:
    with pabal.connect() as mq:
        return {entry.id: entry for state in State for entry in mq.queue(queue).entries(state)}


def body(entry: Entry) -> object:
    assert entry.message is not None
    return entry.message.body


@pytest.fixture
def tree(tmp_path: Path) -> FileTree:
    tree = FileTree(tmp_path / "fs")
    tree.policy("telemetry")
    tree.message("inbox", "plain", priority=7, attributes='{"deviceId": "d1"}')
    tree.message("inbox", "text", payload="not json", attributes="urgent", targetConsumerId="c1", expiredAt=FAR)
    tree.message("inbox", "soon", availableAt=FAR - 1)
    tree.message("delayed", "later", availableAt=FAR, attempt=1)
    tree.message("delayed", "vague", availableAt=0)
    tree.about("delayed", "vague", availableAt=FAR + 1, attempt=2)
    tree.message("processing", "held", attempt=1)
    tree.about("leases", "held", consumerId="c1", leaseId="l", leaseUntil=FAR, attempt=2)
    tree.message("dlq", "dead", attempt=5, dlqReason="retry limit exceeded (attempt 5)", dlqAt=AT + 5000)
    tree.message("archive", "done")
    tree.message("inbox", "other", queue="jobs")
    return tree


def test_a_file_tree_is_taken_over_whole(any_pabal: Pabal, tree: FileTree) -> None:
    before = snapshot(tree.root)
    shown = any_pabal.ok("takeover", str(tree.root))
    assert shown == "jobs: 1 ready, 0 delayed, 0 dead, 0 done\ntelemetry: 3 ready, 3 delayed, 1 dead, 1 done"
    found = entries(any_pabal)
    assert {id: entry.state for id, entry in found.items()} == {
        **dict.fromkeys(["plain", "text", "held"], State.READY),
        **dict.fromkeys(["soon", "later", "vague"], State.DELAYED),
        "dead": State.DEAD,
        "done": State.DONE,
    }
    for id, entry in found.items():
        assert body(entry) == ("not json" if id == "text" else {"id": id})
    assert {id: entry.attempt for id, entry in found.items() if entry.attempt} == {
        "later": 1,
        "vague": 2,
        "held": 2,
        "dead": 5,
    }
    assert [found[id].due_at for id in ("soon", "later", "vague")] == [(FAR + n) / 1000 for n in (-1, 0, 1)]
    plain, text, dead = (found[id] for id in ("plain", "text", "dead"))
    assert plain.message and text.message and dead.failure
    assert (plain.message.priority, plain.message.attributes) == (7, {"deviceId": "d1"})
    assert plain.message.created_at == AT / 1000 and plain.message.expires_at is None
    assert (text.message.target, text.message.expires_at) == ("c1", FAR / 1000)
    assert text.message.attributes == {"attributes": "urgent"}
    assert (dead.failure.reason, dead.failure.at) == ("retry limit exceeded (attempt 5)", AT / 1000 + 5)
    with any_pabal.connect() as mq:
        assert mq.store.settings("telemetry") == POLICY
        assert mq.queue("telemetry").policy.retry.limit == 3
        (first, *_) = mq.queue("telemetry").lease()
        assert first.message.id == "plain"
    assert any_pabal.ok("doctor").startswith("all is well")
    assert snapshot(tree.root) == before
    again = any_pabal("takeover", str(tree.root))
    assert again.code == 6 and "there is a store" in again.err
    assert [path.name for path in any_pabal.place.iterdir() if path.name.startswith(".")] == []


def test_what_cannot_be_read_becomes_a_dead_letter_with_its_bytes(any_pabal: Pabal, tree: FileTree) -> None:
    torn = tree.write("telemetry/inbox/torn.json", b'{"messageId": "torn", "payl')
    tree.write("telemetry/inbox/blob.json", b"\xff\xfe\0")
    tree.message("dlq", "empty")
    tree.write("telemetry/dlq/empty.json", json.dumps({"messageId": "empty", "priority": 0}).encode())
    tree.write("telemetry/inbox/half.json.tmp", b"{")  # a write that the original never finished
    tree.message("archive", "plain", payload='"an earlier one of this id"')
    ran = any_pabal("takeover", str(tree.root), "--json")
    assert ran.code == 1 and f"{torn}: " in ran.err
    assert ran.documents[1] == {"queue": "telemetry", "ready": 3, "delayed": 3, "dead": 4, "done": 2, "damaged": 3}
    found = entries(any_pabal)
    assert body(found["torn"]) == '{"messageId": "torn", "payl' and body(found["blob"]) == b"\xff\xfe\0"
    codes = {entry.failure.code for id in ("torn", "blob", "empty") if (entry := found[id]).failure}
    assert codes == {"CORRUPT"} and body(found["plain"]) == {"id": "plain"}
    assert "an earlier one of this id" in [body(entry) for entry in found.values()]


def test_every_file_of_a_tree_is_taken_over_or_named(any_pabal: Pabal, tree: FileTree) -> None:
    # Names that are no ids here, and whose CRC-32 is the same: each needs an id of its own.
    odd = [tree.message("inbox", f"odd name {number}", payload=str(number)) for number in (29685295, 32060020)]
    assert len({crc32(path.name.encode()) for path in odd}) == 1
    place = tree.root / "telemetry" / "inbox"
    for make in (os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere", path)):
        make(special := place / "special.json")
        ran = any_pabal("takeover", str(tree.root))
        assert ran.code == 6 and f"{special} cannot be taken over" in ran.err and "nothing was made" in ran.err
        special.rename(tree.root / f"away-{make.__name__}")
    any_pabal.ok("takeover", str(tree.root))
    assert {29685295, 32060020} <= {body(entry) for entry in entries(any_pabal).values() if type(body(entry)) is int}


def test_no_store_takes_a_part_of_a_file_tree(tree: FileTree, tmp_path: Path) -> None:
    before = snapshot(tree.root)
    options = "ready=inbox&inflight=processing&done=archive&dead=dlq&private=meta"
    for url in (f"file:{tree.root}", f"file:{tree.root}?{options}"):
        for command in (["publish", "jobs", "1"], ["status"], ["doctor", "--repair"]):
            ran = Pabal(url, tmp_path)(*command)
            assert ran.code == 6 and "pabal --url URL takeover fs.original" in ran.err, ran
    config = {"backend": "filesystem", "filesystem": {"root": "fs", "inboxDir": "inbox", "metaDir": "meta"}}
    (tmp_path / "main_mq_configuration.json").write_text(json.dumps(config))
    up = Pabal("", tmp_path).run("up")
    assert up.code == 6 and "holds the files of the original system" in up.err, up
    assert snapshot(tree.root) == before


def test_folders_and_tables_of_other_names_are_found_in_the_configuration(pabal: Pabal, tmp_path: Path) -> None:
    tree = FileTree(tmp_path / "fs", meta="about")
    tree.policy("telemetry")
    tree.message("in", "m1")
    names = {"inboxDir": "in", "processingDir": "work", "archiveDir": "old", "dlqDir": "bad", "metaDir": "about"}
    config = tmp_path / "main_mq_configuration.json"
    config.write_text(json.dumps({"filesystem": names, "sqlite": {"kvTable": "k", "messageIndexTable": "i"}}))
    ran = pabal("takeover", str(tree.root))
    assert ran.code == 6 and "no queues of the original" in ran.err and not (tmp_path / "store.db").exists()
    assert "telemetry: 1 ready" in pabal.ok("takeover", str(tree.root), "--config", str(config))
    hybrid = HybridTree(tmp_path / "data")
    hybrid.message("m2")
    hybrid.seed.db.execute("alter table kv rename to k; alter table msg_index rename to i")
    other = Pabal(f"sqlite:{tmp_path / 'other.db'}", tmp_path)
    assert "no tables" in other("takeover", str(hybrid.seed.path)).err
    assert "telemetry: 1 ready" in other.ok("takeover", str(hybrid.seed.path), "--config", str(config))
    hybrid.seed.db.close()


@pytest.mark.parametrize("name", ["-odd", "Telemetry"])
def test_what_cannot_be_taken_over_is_named_and_nothing_is_made(pabal: Pabal, tree: FileTree, name: str) -> None:
    tree.message("inbox", "m1", queue=name)
    ran = pabal("takeover", str(tree.root))
    assert ran.code == 6 and name.lower() in ran.err.lower() and "Nothing was made" in ran.err
    tree.message("inbox", "m1", queue="fine")
    (tree.root / name / "inbox" / "m1.json").unlink()
    (tree.root / name / "inbox").rmdir()
    (tree.root / name).rmdir()
    tree.policy("telemetry", {"retry": {"limit": 0}})
    ran = pabal("takeover", str(tree.root))
    assert ran.code == 6 and "policy_telemetry.json" in ran.err and "retry.limit" in ran.err
    assert not [path for path in pabal.place.iterdir() if "store" in path.name]
    inside = Pabal(f"file:{tree.root / 'new'}", pabal.place)("takeover", str(tree.root))
    assert inside.code == 2 and "give another place" in inside.err


# The hybrid tree


@pytest.fixture
def hybrid(tmp_path: Path) -> HybridTree:
    tree = HybridTree(tmp_path / "data")
    tree.seed.kv("policy:telemetry", json.dumps(POLICY), "policy")
    tree.message("plain", priority=7)
    tree.message("held", "inflight", attempt=2, lease_until=FAR)
    tree.message("later", "delayed", available_at=FAR)
    reason = {"dlqReason": "it's broken", "dlqAt": AT + 5000}  # the original writes them here only
    tree.message("dead", "dlq", folder="dlq", attempt=5, envelope=reason)
    tree.message("between", "inflight", folder="dlq")  # killed in the middle of a nack
    tree.payload("done", "archive")
    tree.payload("orphan", "active")
    tree.message("gone", folder="")
    tree.message("torn")
    tree.payload("torn", data=b'{"payl')
    return tree


def test_a_hybrid_tree_is_taken_over_whole(any_pabal: Pabal, hybrid: HybridTree) -> None:
    hybrid.seed.db.close()
    before = snapshot(hybrid.seed.path.parent)
    ran = any_pabal("takeover", str(hybrid.seed.path))
    assert ran.code == 1 and ran.out == "telemetry: 3 ready, 1 delayed, 4 dead, 1 done\n"
    assert [line.split(" is dead: ")[0] for line in ran.err.splitlines()] == [
        f"telemetry/{id}" for id in ("gone", "torn", "orphan")
    ]
    found = entries(any_pabal)
    assert {id: (str(entry.state), entry.attempt) for id, entry in found.items()} == {
        "plain": ("ready", 0),
        "held": ("ready", 2),
        "between": ("ready", 0),
        "later": ("delayed", 0),
        "dead": ("dead", 5),
        "orphan": ("dead", 0),
        "gone": ("dead", 0),
        "torn": ("dead", 0),
        "done": ("done", 0),
    }
    for id in found.keys() - {"gone", "torn"}:
        assert body(found[id]) == {"id": id}
        message = found[id].message
        assert message and message.attributes == {"deviceId": "d1"}
    dead, gone = found["dead"].failure, found["gone"].failure
    assert dead and (dead.reason, dead.at) == ("it's broken", AT / 1000 + 5)
    assert gone and gone.code == "MISSING_PAYLOAD" and "missing" in str(body(found["gone"]))
    assert body(found["torn"]) == '{"payl'
    assert found["plain"].message and found["plain"].message.priority == 7
    with any_pabal.connect() as mq:
        assert mq.store.settings("telemetry") == POLICY
    assert any_pabal.ok("doctor").startswith("all is well")
    assert snapshot(hybrid.seed.path.parent) == before


def test_a_store_that_is_open_is_read_with_its_wal(pabal: Pabal, hybrid: HybridTree) -> None:
    hybrid.seed.db.execute("pragma wal_checkpoint(truncate)").fetchall()
    hybrid.message("last")
    assert (hybrid.seed.path.parent / "yirangmq.db-wal").stat().st_size > 0
    pabal("takeover", str(hybrid.seed.path))
    assert "last" in entries(pabal)
    hybrid.seed.db.close()


@pytest.mark.parametrize("scheme", ["sqlite", "hybrid"])
def test_the_index_of_a_hybrid_tree_is_not_opened_without_its_payloads(scheme: str, hybrid: HybridTree) -> None:
    path = hybrid.seed.path
    hybrid.seed.db.close()
    rows = snapshot(hybrid.payloads)
    url = f"sqlite:{path}" if scheme == "sqlite" else f"hybrid:{path.parent / 'new'}?db={path}"
    for _ in range(2):
        with pytest.raises(StoreRefused, match="takeover DATABASE --payloads"):
            connect(url)
    with pytest.raises(StoreRefused, match="holds the payloads of a hybrid store"):
        connect(f"hybrid:{path.parent / 'new'}?bodies={hybrid.payloads}")
    assert snapshot(hybrid.payloads) == rows
    assert Pabal(f"file:{path.parent / 'spool'}", path.parent)("takeover", str(path)).code == 1


def test_a_database_without_files_is_taken_over_too(pabal: Pabal, tmp_path: Path) -> None:
    hybrid = HybridTree(tmp_path / "data")
    hybrid.seed.message("m1", payload='{"n": 1}')
    hybrid.seed.kv("msg:telemetry:stray", '{"payload": "1"}', "message")
    hybrid.seed.message("m2", "dlq", value=json.dumps({"payload": "2", "dlqReason": "nacked", "dlqAt": AT}))
    hybrid.seed.db.close()
    ran = pabal("takeover", str(hybrid.seed.path))
    assert ran.code == 1 and "no row of msg_index named it" in ran.err
    found = entries(pabal)
    assert body(found["m1"]) == {"n": 1} and body(found["stray"]) == 1
    assert found["m2"].failure and found["m2"].failure.reason == "nacked"
