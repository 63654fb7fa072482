"""Options of a store in its URL: folders of other names, tables of other names, other places."""

import json
from pathlib import Path

import apsw
import pytest

from pabal.connect import connect
from pabal.errors import InvalidInput, InvalidUrl
from pabal.store import State

TEMPLATE = """
create table if not exists {{kv_table}} (
  key text primary key, value text not null, value_type text not null,
  created_at integer not null, updated_at integer not null, expires_at integer
);
create table if not exists {{msg_index_table}} (
  queue text not null, state text not null, priority integer not null default 0, available_at integer not null,
  lease_until integer, attempt integer not null default 0,
  message_key text not null references {{kv_table}}(key) on delete cascade, primary key (message_key)
);
"""


def tables(path: Path) -> dict[str, str]:
    connection = apsw.Connection(str(path))
    found = dict(connection.execute("select name, type from sqlite_schema where type in ('table', 'view')"))
    connection.close()
    return {str(name): str(kind) for name, kind in found.items()}


def test_the_folders_of_a_spool_may_be_called_otherwise(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/spool?ready=inbox&inflight=processing&done=archive&dead=dlq&private=meta"
    with connect(url) as mq:
        jobs = mq.queue("jobs")
        jobs.publish_many([1, 2, 3])
        [first, second] = jobs.lease(2)
        first.ack()
        second.bury("no")
        assert mq.queues() == ["jobs"]
        with pytest.raises(InvalidInput, match="the store's own"):
            mq.queue("meta").publish(1)
    spool = tmp_path / "spool"
    assert {path.name for path in (spool / "jobs").iterdir()} == {
        *("inbox", "processing", "archive", "dlq", "delayed", "corrupt")
    }
    assert (spool / "meta/jobs/dedup").is_dir() and len(list((spool / "jobs/inbox").iterdir())) == 1
    with connect(url, create=False) as mq:
        assert mq.queue("jobs").counts()[State.DEAD] == 1


def test_a_hybrid_store_may_lie_in_two_places(tmp_path: Path) -> None:
    url = f"hybrid:{tmp_path}/root?db={tmp_path}/fast/my.db&bodies={tmp_path}/large"
    with connect(url) as mq:
        mq.queue("jobs").publish({"a": 1}, id="one")
    assert (tmp_path / "fast/my.db").is_file() and list((tmp_path / "large/jobs").iterdir())
    assert not (tmp_path / "root").exists()
    with connect(url, create=False) as mq:
        assert mq.queue("jobs").lease()[0].body == {"a": 1}


def test_a_database_with_tables_of_other_names_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    old = apsw.Connection(str(path))
    old.execute(TEMPLATE.replace("{{kv_table}}", "my_kv").replace("{{msg_index_table}}", "my_idx")).fetchall()
    envelope = {"messageId": "m1", "queue": "jobs", "payload": '{"t": 1}', "attributes": "{}", "priority": 3}
    old.execute("insert into my_kv values ('msg:jobs:m1', ?, 'message', 0, 0, null)", (json.dumps(envelope),))
    old.execute("insert into my_idx values ('jobs', 'ready', 3, 0, null, 0, 'msg:jobs:m1')")
    old.close()
    url = f"sqlite:{path}?kv=my_kv&index=my_idx"
    for _ in range(2):
        with connect(url) as mq:
            assert mq.queue("jobs").browse(State.READY)[0].id == "m1"
    assert {name: kind for name, kind in tables(path).items() if name in ("my_kv", "my_idx", "kv", "msg_index")} == {
        **dict.fromkeys(("my_kv", "my_idx", "kv", "msg_index"), "view")
    }
    reader = apsw.Connection(str(path))
    assert reader.execute("select state, priority from my_idx").fetchall() == [("ready", 3)]
    reader.close()


def test_a_new_database_has_the_views_under_other_names_too(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/a.db?kv=my_kv&index=my_idx"
    for number in range(2):
        with connect(url) as mq:
            mq.queue("jobs").publish(number)
            assert mq.queue("jobs").counts()[State.READY] == number + 1
    assert {tables(tmp_path / "a.db")[name] for name in ("my_kv", "my_idx", "kv", "msg_index")} == {"view"}


@pytest.mark.parametrize(
    "options",
    ["colour=red", "ready=a&ready=b", "ready=", "ready=../x", "ready=dead", "private=../x"],
)
def test_options_that_are_none_are_refused(options: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        connect(f"file:{tmp_path}/spool?{options}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", ["busy=soon", "busy=-1", "kv=a'b", "template=/nowhere.sql", "ready=inbox"])
def test_options_of_a_database_are_checked(options: str, tmp_path: Path) -> None:
    with pytest.raises((InvalidUrl, InvalidInput)):
        connect(f"sqlite:{tmp_path}/a.db?{options}")
    assert list(tmp_path.iterdir()) == []
