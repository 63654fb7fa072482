"""What another user of the machine may have put where a store keeps its files: it is refused, or replaced unread."""

import ast
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import pabal
from pabal.durable import Ballast, replace_whole
from pabal.errors import InvalidUrl, StoreRefused
from pabal.filesystem import file_system, mounts, private, require_own, touch
from pabal.runtime.state_file import write_reading
from pabal.sql.bells import Bells
from pabal.store import Waitable
from pabal.testing import ManualClock
from tests.cli.command import COMMAND
from tests.crash.conftest import need
from tests.mailbox.users import ALICE, STRANGER, as_user

URLS = {"sqlite": "sqlite:{}/q.db", "file": "file:{}/spool", "hybrid": "hybrid:{}/both"}


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file of ours outside of the store, which no store may change."""
    path = tmp_path / "precious"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "shared"
    path.mkdir()
    return path


def use(url: str) -> list[object]:
    with pabal.connect(url) as mq:
        queue = mq.queue("jobs")
        queue.publish({"n": 1})
        found = queue.lease(10)
        for delivery in found:
            delivery.ack()
        assert isinstance(mq.store, Waitable)
        mq.store.watch(["jobs"]).close()
        return [delivery.body for delivery in found]


# Links where our own files belong


@pytest.mark.parametrize("name", ["q.db.ballast", "q.db.ballast.{}"])
def test_a_link_in_place_of_the_ballast_is_never_followed(folder: Path, victim: Path, name: str) -> None:
    (folder / name.format(os.getpid())).symlink_to(victim)
    assert use(URLS["sqlite"].format(folder)) == [{"n": 1}]
    ballast = folder / "q.db.ballast"
    assert not ballast.is_symlink() and ballast.stat().st_size == 8 << 20


def test_a_ballast_that_was_not_finished_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "ballast"
    path.write_bytes(b"cut short")
    Ballast(path, size=1 << 20).restore()
    assert path.stat().st_size == 1 << 20
    assert os.listdir(tmp_path) == ["ballast"]


LINKS = {
    "sqlite": ("q.db.lock", "q.db.bells", "q.db.counters", "q.db.consumers"),
    "hybrid": (
        *(f"both/pabal.db{beside}" for beside in (".lock", ".bells", ".counters", ".consumers")),
        *("both/bodies", "both/bodies/jobs", "both/bodies.orphaned"),
    ),
    "file": (
        *("spool/.lock", "spool/.settling", "spool/.counters", "spool/.consumers"),
        *("spool/jobs", "spool/jobs/ready", "spool/jobs/tmp", "spool/jobs/.lock"),
    ),
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in LINKS.items() for name in names])
def test_a_link_in_place_of_a_file_or_folder_of_the_store_is_refused(
    folder: Path, tmp_path: Path, victim: Path, kind: str, name: str
) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / name).symlink_to(victim if name.endswith(".lock") else elsewhere)
    with pytest.raises(pabal.PabalError, match="symbolic link"):
        use(URLS[kind].format(folder))
    assert os.listdir(elsewhere) == []


def test_the_way_to_a_store_may_be_a_link(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    for url in URLS.values():
        assert use(url.format(tmp_path / "link")) == [{"n": 1}]


@pytest.mark.parametrize("kind", URLS)
def test_files_of_others_among_the_consumers_and_the_counters_are_left_and_never_waited_for(
    folder: Path, victim: Path, kind: str
) -> None:
    clock = ManualClock()
    with pabal.connect(URLS[kind].format(folder), clock=clock) as mq:
        mq.queue("jobs").publish({"n": 1})
        mq.queue("jobs").lease()
        [counters] = [path for path in folder.rglob("*counters") if path.is_dir()]
        [consumers] = [path for path in folder.rglob("*consumers") if path.is_dir()]
        for place, end in ((counters, ""), (consumers, ".json")):
            os.mkfifo(place / f"70{end}")
            (place / f"71{end}").symlink_to(victim)
            (place / f"72{end}").write_text("{}")
            for name in (70, 71, 72):
                os.utime(place / f"{name}{end}", (1, 1), follow_symlinks=False)
        clock.advance(700)
        mq.queue("jobs").sweep()
        assert len(mq.consumers()) == 1
        assert mq.store.counters("jobs").published == 1
        assert {f"{name}.json" for name in (70, 71, 72)} <= {path.name for path in consumers.iterdir()}


def test_counters_are_kept_beside_what_another_put_in_their_place(folder: Path, victim: Path) -> None:
    place = folder / "q.db.counters"
    place.mkdir()
    os.mkfifo(place / "1")
    (place / "2").symlink_to(victim)
    (place / "3").mkdir()
    use(URLS["sqlite"].format(folder))
    assert (place / "4").stat().st_size


def test_bells_are_no_links(folder: Path, victim: Path) -> None:
    (folder / "bells").mkdir()
    (folder / "bells" / "jobs").symlink_to(victim)
    bells = Bells(folder / "bells")
    bells.ring(["jobs"])
    with pytest.raises(pabal.PabalError):
        bells.watch(["jobs"])


def test_what_replaces_or_opens_files_follows_no_link(folder: Path, victim: Path) -> None:
    for name in ("a", ".a.tmp", f".a.{os.getpid()}.tmp"):
        (folder / name).symlink_to(victim)
    replace_whole(folder / "a", b"new")
    assert (folder / "a").read_bytes() == b"new" and not (folder / "a").is_symlink()
    write_reading(folder / "a", b"newer")
    assert (folder / "a").read_bytes() == b"newer"
    (folder / "b").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        touch(folder / "b")
    with pytest.raises(OSError, match="symbolic links"):
        open(folder / "b", "wb", opener=private).close()


def test_no_code_makes_a_file_through_a_link() -> None:
    """Whatever makes a file names O_NOFOLLOW or O_EXCL, or uses `private`, `touch`, `write_new`, `replace_whole`."""
    found = [
        f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(Path(pabal.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _unsafe(node)
    ]
    assert found == []


def _unsafe(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    text = ast.unparse(call)
    if name.rpartition(".")[2] in ("write_text", "write_bytes", "mkfifo", "mknod", "copyfile", "mktemp"):
        return True
    if name.endswith(".touch"):
        return True
    if name == "os.open":
        return "O_CREAT" in text and "O_NOFOLLOW" not in text and "_FLAGS" not in text
    if name == "open" or name.endswith(".open"):
        modes = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        writes = any(set(mode) & set("wax") and set(mode) <= set("rwaxbt+") for mode in modes)
        return writes and "opener=private" not in text and "os.devnull" not in text
    return False


# Files of other users


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may write to, reachable for every user."""
    need("root, for files of other users", os.geteuid() == 0)
    with tempfile.TemporaryDirectory(prefix="pabal-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


def _own_all(path: Path, uid: int) -> None:
    for place in (path, *path.rglob("*")):
        os.chown(place, uid, uid, follow_symlinks=False)


@pytest.mark.root
@pytest.mark.parametrize("kind", URLS)
def test_a_store_of_another_user_is_refused_unless_asked_for(open_folder: Path, kind: str) -> None:
    url = URLS[kind].format(open_folder)
    use(url)
    for place in open_folder.iterdir():
        _own_all(place, STRANGER)
    with pytest.raises(StoreRefused, match=f"belongs to {STRANGER}.*expected root: .*owner={STRANGER}"):
        use(url)
    assert use(f"{url}?owner={STRANGER}") == [{"n": 1}]
    assert use(f"{url}?owner=any") == [{"n": 1}]
    with pytest.raises(StoreRefused):
        use(f"{url}?owner={ALICE}")
    with pytest.raises(InvalidUrl, match="name or number of a user"):
        use(f"{url}?owner=no-such-user")


@pytest.mark.root
def test_topics_of_another_user_are_refused_unless_asked_for(open_folder: Path) -> None:
    url = f"sqlite:{open_folder}/t.db"
    pabal.connect_topics(url).close()
    os.chown(open_folder / "t.db", STRANGER, STRANGER)
    with pytest.raises(StoreRefused, match="owner="):
        pabal.connect_topics(url)
    pabal.connect_topics(f"{url}?owner={STRANGER}").close()


@pytest.mark.root
@pytest.mark.parametrize(
    "name",
    ["both/pabal.db.lock", "both/pabal.db.bells", "both/bodies", "both/bodies/jobs", "both", "spool/jobs", "spool"],
)
def test_a_part_of_a_store_that_another_user_made_is_refused(open_folder: Path, name: str) -> None:
    (open_folder / name).parent.mkdir(parents=True, exist_ok=True)
    (open_folder / name).touch() if name.endswith(".lock") else (open_folder / name).mkdir()
    os.chown(open_folder / name, STRANGER, STRANGER)
    with pytest.raises(StoreRefused, match="belongs to"):
        use(URLS["file" if name.startswith("spool") else "hybrid"].format(open_folder))


@pytest.mark.root
@pytest.mark.parametrize("kind", URLS)
def test_a_user_meets_the_traps_of_another(open_folder: Path, kind: str) -> None:
    """Two real users: one lays traps, the other opens a store among them. Nothing of the second one is changed."""
    url = URLS[kind].format(open_folder)
    home = open_folder / "home"
    home.mkdir()
    os.chown(home, ALICE, ALICE)

    def lay_traps() -> None:
        for name in ("q.db.ballast", *(f"q.db.ballast.{pid}" for pid in range(os.getpid(), os.getpid() + 500))):
            os.symlink(home / "precious", open_folder / name)
        for name in ("spool", "both"):
            os.mkdir(open_folder / name)
            os.chmod(open_folder / name, 0o777)
        os.symlink(home / "precious", open_folder / "spool/.ballast")
        os.symlink(home / "precious", open_folder / "both/pabal.db.ballast")

    def walk_in() -> str:
        (home / "precious").write_text("precious")
        try:
            use(url)
        except StoreRefused:
            pass
        return (home / "precious").read_text()

    use("sqlite:" + str(home / "warm.db"))  # as another user nothing can be imported from where only root may read
    as_user(STRANGER, lay_traps)
    assert as_user(ALICE, walk_in) == "precious"


@pytest.mark.root
def test_what_root_made_is_accepted_by_others(open_folder: Path) -> None:
    (open_folder / "spool").mkdir()
    (open_folder / "spool").chmod(0o777)
    assert as_user(ALICE, lambda: use(f"file:{open_folder}/spool")) == [{"n": 1}]


def test_what_is_missing_belongs_to_nobody_else(tmp_path: Path) -> None:
    require_own(tmp_path / "nothing")
    require_own(tmp_path / "nothing/at/all")


# Mounts


@pytest.mark.parametrize(
    "name", ["datén", "한국", "with space", "tab\there", "back\\slash", "a\u2028b", "x\x85y", "re\rturn"]
)
def test_a_mount_is_known_by_any_name(tmp_path: Path, name: str) -> None:
    escaped = "".join(f"\\{ord(char):03o}" if char in " \t\n\\" else char for char in name)
    table = tmp_path / "mountinfo"
    text = "36 35 254:0 / {} rw,noatime shared:1 - {} /dev/a rw\n"
    table.write_text(text.format("/", "ext4") + text.format(f"{tmp_path}/{escaped}", "nfs4"), newline="")
    assert [mount.place for mount in mounts(table)] == ["/", f"{tmp_path}/{name}"]
    assert file_system(tmp_path / name / "deep", table) == "nfs4"
    assert file_system(tmp_path / "other", table) == "ext4"


# What a lax umask would open to others


@pytest.mark.parametrize(
    "arguments",
    [
        ["ignite", "init", "--scripts"],
        ["kingdom", "--home", "kingdom", "init"],
        ["kingdom", "--home", "kingdom", "init", "--queues", "sqlite:state/q.db"],
        ["publish", "jobs", "1"],
        ["--url", "file:spool", "publish", "jobs", "1"],
        ["--url", "hybrid:both", "publish", "jobs", "1"],
        ["topic", "--topics", "sqlite:t/t.db", "create", "t"],
    ],
    ids=lambda each: " ".join(each),
)
def test_what_a_command_makes_is_for_its_user_alone_whatever_the_umask(tmp_path: Path, arguments: list[str]) -> None:
    home = tmp_path / "place"
    home.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PABAL", "KINGDOM", "IGNITE"))}
    subprocess.run([*COMMAND, *arguments], cwd=home, env=env, umask=0, check=True, capture_output=True)
    found = {str(path.relative_to(home)): path.lstat() for path in home.rglob("*") if not path.is_symlink()}
    assert found
    shared = (".claude", "AGENTS.md")  # parts of the project, for everybody who works on it to read
    wrong = {name: 0o022 if name.startswith(shared) else 0o077 for name in found}
    assert {name: oct(about.st_mode) for name, about in found.items() if about.st_mode & wrong[name]} == {}
