"""`pabal mime`: what scripts for the original tool do, on real files."""

import json
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pabal.codecs.mime import MimeCodec
from tests.cli.command import COMMAND, Pabal

BODY = 'task_id: "task_001"\ntitle: 일  # kept as it is\nnotes: |\n  둘\n\n  셋\n'


@pytest.fixture
def file(pabal: Pabal, tmp_path: Path) -> Path:
    path = tmp_path / "task.mime"
    args = (
        "--from coordinator --to ignitian_1 --type task_assignment --priority high --repo owner/repo --issue 42".split()
    )
    pabal.ok("mime", "build", *args, "--body", BODY, "-o", str(path))
    return path


def parsed(pabal: Pabal, file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(pabal.ok("mime", "parse", str(file)))
    return document


def body_of(data: bytes) -> bytes:
    return data.partition(b"\n\n")[2]


def test_a_built_file_is_in_the_format_and_for_its_owner_only(file: Path) -> None:
    text = file.read_text()
    assert re.fullmatch(
        r"MIME-Version: 1\.0\n"
        r"Message-ID: <\d{10}\.\d+\.[0-9a-f]{16}@ignite\.local>\n"
        r"From: coordinator\n"
        r"To: ignitian_1\n"
        r"Date: [A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d \+0000\n"
        r"X-IGNITE-Type: task_assignment\n"
        r"X-IGNITE-Priority: high\n"
        r"X-IGNITE-Repository: owner/repo\n"
        r"X-IGNITE-Issue: 42\n"
        r"(X-Pabal-Microseconds: \d+\n)?"
        r"Content-Type: text/x-yaml; charset=utf-8\n"
        r"Content-Transfer-Encoding: 8bit\n"
        r"\n" + re.escape(BODY),
        text,
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == ["task.mime"]
    message = MimeCodec().decode(file.read_bytes())
    assert message.body == {"task_id": "task_001", "title": "일", "notes": "둘\n\n셋\n"}


def test_parse_prints_the_json_of_the_original_tool(pabal: Pabal, file: Path) -> None:
    document = parsed(pabal, file)
    message_id, date = document.pop("message_id"), document.pop("date")
    assert message_id.endswith("@ignite.local>") and date.endswith("+0000")
    assert document == {
        "from": "coordinator",
        "to": ["ignitian_1"],
        "cc": [],
        "in_reply_to": "",
        "type": "task_assignment",
        "priority": "high",
        "thread_id": "",
        "repository": "owner/repo",
        "issue": "42",
        "status": "",
        "content_type": "text/x-yaml; charset=utf-8",
        "body": BODY,
    }
    assert "\n  " in pabal.ok("mime", "parse", str(file))


def test_every_option_of_build_has_its_header(pabal: Pabal, tmp_path: Path) -> None:
    made = tmp_path / "made.mime"
    made.write_text(
        pabal(
            *("mime", "build", "--from", "leader", "--to", "architect", "evaluator", "--to", "innovator"),
            *("--cc", "strategist", "coordinator", "--type", "user_goal", "--thread-id", "스레드"),
            *("--in-reply-to", "<1.2.ab@ignite.local>", "--status", "queued", "--body-file", "-"),
            stdin="goal: x\n",
        ).out
    )
    document = parsed(pabal, made)
    assert document["to"] == ["architect", "evaluator", "innovator"]
    assert document["cc"] == ["strategist", "coordinator"]
    assert (document["priority"], document["thread_id"], document["status"]) == ("normal", "스레드", "queued")
    assert (document["in_reply_to"], document["body"]) == ("<1.2.ab@ignite.local>", "goal: x\n")


def test_a_body_comes_from_a_file_or_there_is_none(pabal: Pabal, tmp_path: Path) -> None:
    (tmp_path / "body.yaml").write_text(BODY)
    args = ["mime", "build", "--from", "user", "--to", "leader", "--type", "user_goal"]
    assert body_of(pabal(*args, "--body-file", str(tmp_path / "body.yaml")).out.encode()) == BODY.encode()
    assert body_of(pabal(*args).out.encode()) == b""


def test_extract_body_prints_the_bytes_as_they_are(pabal: Pabal, file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"broken: [ \xff\n\n")
    done = subprocess.run([*COMMAND, "mime", "extract-body", str(file)], capture_output=True, timeout=60)
    assert done.returncode == 0 and done.stdout == BODY.encode() + b"broken: [ \xff\n\n"


def test_headers_change_and_the_body_does_not(pabal: Pabal, file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x: \xff \r\n\n\nFrom: not a header\n")
    before = file.read_bytes()
    pabal.ok("mime", "update-status", str(file), "delivered", "--processed-at", "2026-02-10T12:00:00+09:00")
    pabal.ok(
        *("mime", "update-status", str(file), "retrying", "--extra", "X-IGNITE-Error-Reason=이유=x", "X-IGNITE-A=b")
    )
    pabal.ok("mime", "update-header", str(file), "X-IGNITE-Retry-Count", "3")
    pabal.ok("mime", "update-header", str(file), "To", "leader")
    pabal.ok("mime", "remove-header", str(file), "x-ignite-a")
    pabal.ok("mime", "remove-header", str(file), "X-IGNITE-Never-There")
    after = file.read_bytes()
    assert body_of(after) == body_of(before)
    added = (
        b"X-IGNITE-Status: retrying\nX-IGNITE-Processed-At: 2026-02-10T12:00:00+09:00\n"
        b"X-IGNITE-Error-Reason: =?utf-8?b?7J207JygPXg=?=\nX-IGNITE-Retry-Count: 3\nContent-Type: "
    )
    assert after == before.replace(b"To: ignitian_1", b"To: leader", 1).replace(b"Content-Type: ", added, 1)
    assert os.listdir(file.parent) == ["task.mime"]


def test_further_headers_are_told_in_snake_case(pabal: Pabal, file: Path) -> None:
    pabal.ok(
        *(
            "mime",
            "update-status",
            str(file),
            "error",
            "--extra",
            "X-IGNITE-Error-Reason=이유",
            "X-IGNITE-Next-Retry-After=5",
        )
    )
    document = parsed(pabal, file)
    assert (document["status"], document["error_reason"], document["next_retry_after"]) == ("error", "이유", "5")


def test_the_mode_of_a_file_stays_through_a_change(pabal: Pabal, file: Path) -> None:
    file.chmod(0o640)
    pabal.ok("mime", "update-header", str(file), "X-A", "1")
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_changes_made_at_once_are_all_there(file: Path) -> None:
    code = """if True:
        import sys
        from pabal.cli.mime import mime
        for number in range(20):
            mime.main(["update-header", sys.argv[1], f"X-{sys.argv[2]}-{number}", "1"], standalone_mode=False)
    """
    started = [subprocess.Popen([sys.executable, "-c", code, str(file), str(one)]) for one in range(4)]
    assert [process.wait(60) for process in started] == [0] * 4
    assert len(re.findall(r"^X-[0-3]-[0-9]+: 1$", file.read_text(), re.M)) == 80


def test_a_reader_never_sees_half_a_file(pabal: Pabal, file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"# " + b"long " * 100_000 + b"\nlast: line\n")
    seen: list[bool] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.append(file.read_bytes().endswith(b"last: line\n"))

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(20):
        pabal.ok("mime", "update-header", str(file), "X-IGNITE-Retry-Count", str(number))
    stop.set()
    reader.join()
    assert seen and all(seen)


def test_a_file_that_is_gone_is_not_brought_back(pabal: Pabal, tmp_path: Path) -> None:
    ran = pabal("mime", "update-status", str(tmp_path / "gone.mime"), "delivered")
    assert ran.code == 2 and "gone.mime" in ran.err and os.listdir(tmp_path) == []


def test_a_file_that_is_removed_during_a_change_stays_removed(pabal: Pabal, file: Path) -> None:
    data = file.read_bytes()
    for _ in range(30):
        file.write_bytes(data)
        codes: list[int] = []

        def change(codes: list[int] = codes) -> None:
            while not codes or codes[-1] == 0:
                codes.append(pabal("mime", "update-header", str(file), "X-A", str(len(codes))).code)

        changer = threading.Thread(target=change)
        changer.start()
        while not codes:
            pass
        file.unlink()
        changer.join()
        assert os.listdir(file.parent) == [] and codes[-1] in (2, 3)


BUILD = ["mime", "build", "--from", "user", "--to", "leader", "--type", "user_goal"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--from", "x\nBcc: y"], "InvalidName"),
        (["--to", "../../etc"], "InvalidName"),
        (["--cc", "a/b"], "InvalidName"),
        (["--type", "a\nFrom: b"], "InvalidHeader"),
        (["--repo", "a\rb"], "InvalidHeader"),
        (["--issue", "1\n\nbody"], "InvalidHeader"),
        (["--thread-id", "a\x1b[2J"], "InvalidHeader"),
        (["--type", ""], "MissingHeader"),
        (["--priority", "urgent"], "UsageError"),
        (["--body", "a: b: c"], "NotYaml"),
        (["--body", "a: &a 1\nb: *a"], "AliasNotAllowed"),
        (["--body", "a: 1\na: 2"], "DuplicateKey"),
        (["--body-file", "/does/not/exist"], "FileError"),
    ],
)
def test_what_cannot_be_a_message_is_refused_and_nothing_is_written(
    pabal: Pabal, tmp_path: Path, args: list[str], says: str
) -> None:
    ran = pabal(*BUILD, *args, "-o", str(tmp_path / "m.mime"))
    assert ran.code == 2 and ran.err.startswith(f"pabal: {says}: ") and os.listdir(tmp_path) == []
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("missing", ["--from", "--to", "--type"])
def test_what_must_be_said_is_asked_for(pabal: Pabal, missing: str) -> None:
    place = BUILD.index(missing)
    ran = pabal(*BUILD[:place], *BUILD[place + 2 :])
    assert ran.code == 2 and missing in ran.err


@pytest.mark.parametrize("args", [("parse",), ("extract-body",), ("update-status", "x"), ("remove-header", "X-A")])
def test_a_file_of_a_terabyte_is_refused_by_its_size_before_it_is_read(
    pabal: Pabal, file: Path, args: tuple[str, ...]
) -> None:
    for size in (100 << 20, 1 << 40):
        os.truncate(file, size)
        ran = pabal("mime", args[0], str(file), *args[1:])
        assert ran.code == 2 and ran.err.startswith("pabal: TooLarge: ") and str(size) in ran.err
        assert file.stat().st_size == size


def test_a_broken_file_is_one_line_of_error(pabal: Pabal, file: Path) -> None:
    for data, says in (
        (b"no headers at all", "NotMime"),
        (b"A: 1\nA: 2\n\n", "DuplicateHeader"),
        (b"A: b\0\n\n", "InvalidHeader"),
    ):
        file.write_bytes(data)
        for command in ("parse", "extract-body"):
            ran = pabal("mime", command, str(file))
            assert ran.code == 2 and ran.err.startswith(f"pabal: {says}: ") and ran.out == ""
        assert pabal("mime", "update-status", str(file), "x").code == 2 and file.read_bytes() == data


def test_an_injecting_change_is_refused_and_the_file_stays(pabal: Pabal, file: Path) -> None:
    before = file.read_bytes()
    for args in (("update-header", str(file), "X-A", "b\nFrom: c"), ("update-header", str(file), "X-A: b\nX-B", "c")):
        ran = pabal("mime", *args)
        assert ran.code == 2 and "InvalidHeader" in ran.err
    assert pabal("mime", "update-status", str(file), "a\r\nb").code == 2
    assert file.read_bytes() == before and os.listdir(file.parent) == ["task.mime"]


def test_a_script_for_the_original_tool_runs_unchanged(pabal: Pabal, tmp_path: Path) -> None:
    tool = tmp_path / "scripts" / "lib" / "ignite_mime.py"
    tool.parent.mkdir(parents=True)
    tool.write_text(
        "import sys\nfrom pabal.cli.main import cli\ncli(['mime', *sys.argv[1:]], prog_name='ignite_mime')\n"
    )
    script = """
    set -eu
    mkdir -p workspace/queue/leader/processed
    message="workspace/queue/leader/user_goal_$(date +%s%6N).mime"
    python scripts/lib/ignite_mime.py build --from user --to leader --type user_goal --priority high \
        --body 'goal: "README를 쓴다"' -o "$message"
    mv "$message" workspace/queue/leader/processed/
    message=$(find workspace/queue -name 'user_goal_*.mime')
    python scripts/lib/ignite_mime.py update-status "$message" delivered --processed-at "$(date -Iseconds)"
    python scripts/lib/ignite_mime.py update-header "$message" X-IGNITE-Retry-Count 3
    python scripts/lib/ignite_mime.py remove-header "$message" X-IGNITE-Error-Reason
    python scripts/lib/ignite_mime.py parse "$message" | grep -o '"retry_count": "3"'
    python scripts/lib/ignite_mime.py extract-body "$message"
    """
    environment = {**os.environ, "PATH": f"{Path(COMMAND[0]).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, '"retry_count": "3"\ngoal: "README를 쓴다"\n'), done.stderr
