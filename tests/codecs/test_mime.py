"""The MIME codec: the laws, the golden files, which header says what, and hostile files refused by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from pabal.codecs.mime import MimeCodec
from pabal.codecs.mime.addresses import Recipients, address, named, new_id, split
from pabal.errors import DecodeError, InvalidHeader, InvalidName, InvalidText, TooLarge
from pabal.message import Message, check_message, replace
from pabal.names import check_id
from pabal.testing import CodecSuite

GOLDEN = Path(__file__).parent / "golden"
CODEC = MimeCodec()

TASK = Message(
    id="1770692400.4711.a1b2c3d4e5f60718",
    body={
        "task_id": "task_007",
        "title": "로그인 화면을 고친다",
        "instructions": "1. 테스트를 쓴다\n2. 고친다\n\n끝.\n",
        "deliverables": ["login.py", {"file": "テスト.py", "location": "tests/"}],
        "estimated_time": 60,
        "urgent": False,
        "answer": "no",
        "notes": None,
    },
    type="task_assignment",
    sender="coordinator",
    priority=6,
    thread_id="thread-1",
    headers={
        "In-Reply-To": "<1770692399.4711.00@ignite.local>",
        "X-IGNITE-Repository": "owner/repo",
        "X-IGNITE-Issue": "42",
    },
    created_at=1_770_692_400.0,
)
FULL = Message(
    id="evt-github-123-2026-02-07T10:00:00Z",
    body=[[], {}, [[1, -2.5, 1e300], {"k": [None, True]}], "", " spaced ", "tab\tand \x00", "1:30", "😀"],
    type="읽기 reading",
    version=3,
    sender="sensor-1",
    target="worker-1",
    attributes={"zone": "北", "priority": 7},
    headers={
        "To": "leader, strategist",
        "Cc": "architect",
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "X-IGNITE-Colour": "파랑 " * 40,
        "X-IGNITE-Empty": "",
        "X-IGNITE-Status": "mine, not the file's",
        "x-ignite-colour": "another",
        "not a name": "=?utf-8?q?not_a_word?=",
    },
    priority=-3,
    group="line 1",
    dedup_key="device-001:1705112460",
    trace_id="tr-1",
    reply_to="answers",
    created_at=1_700_000_000.25,
    expires_at=1_700_003_600.5,
)
BARE = Message(id="m", body=None)
BYTES = Message(id="m-2", body=bytes(range(256)), created_at=1_700_000_000.0)


class TestMimeCodec(CodecSuite):
    codec = CODEC
    golden = {
        GOLDEN / "task-1.mime": ("ignitian_1", TASK),
        GOLDEN / "full-1.mime": ("telemetry", FULL),
        GOLDEN / "bare-1.mime": ("", BARE),
        GOLDEN / "bytes-1.mime": ("blobs", BYTES),
    }


def test_the_headers_stand_in_the_order_of_the_format() -> None:
    names = [line.partition(":")[0] for line in CODEC.encode(TASK, queue="ignitian_1").decode().splitlines()[:13]]
    assert names == [
        "MIME-Version",
        "Message-ID",
        "From",
        "To",
        "Date",
        "X-IGNITE-Type",
        "X-IGNITE-Priority",
        "X-IGNITE-Thread-ID",
        "In-Reply-To",
        "X-IGNITE-Repository",
        "X-IGNITE-Issue",
        "Content-Type",
        "Content-Transfer-Encoding",
    ]


# As a person or another program writes it: a wrong day of the week, comments, quotes, a status, a header of their own.
FOREIGN = """\
MIME-Version: 1.0
Message-ID: <1770263544.12345.abcdef@ignite.local>
From: coordinator
To: ignitian_1
Date: Mon, 10 Feb 2026 12:00:00 +0900
X-IGNITE-Type: task_assignment
X-IGNITE-Priority: high
x-ignite-repository: owner/repo
X-IGNITE-Shade: 青
X-IGNITE-Note: in two
  lines
X-IGNITE-Status: processing
X-IGNITE-Retry-Count: 2
Content-Type: text/x-yaml; charset=utf-8
Content-Transfer-Encoding: 8bit

# a comment
task_id: "task_001"
steps: [yes, 012, 2001-01-01, 1.5]
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_file_that_somebody_else_wrote_is_read(newline: str) -> None:
    message = CODEC.decode(FOREIGN.replace("\n", newline).encode())
    assert (message.id, message.sender, message.type) == (
        "1770263544.12345.abcdef",
        "coordinator",
        "task_assignment",
    )
    assert (message.priority, message.created_at, message.target) == (6, 1_770_692_400.0, "")
    assert message.body == {"task_id": "task_001", "steps": ["yes", "012", "2001-01-01", 1.5]}
    # Its own headers are kept; what changes on the way is not the message's.
    assert message.headers == {
        "X-IGNITE-Repository": "owner/repo",
        "X-IGNITE-Shade": "青",
        "X-IGNITE-Note": "in two  lines",
    }


def test_a_message_id_of_another_domain_is_kept_beside_an_id_that_files_can_have() -> None:
    data = FOREIGN.replace("@ignite.local", "@mail.example/x").encode()
    message = CODEC.decode(data)
    assert check_id(message.id) == message.id and message.headers["Message-ID"].endswith("@mail.example/x>")
    again = CODEC.encode(message, queue="ignitian_1")
    assert b"\nMessage-ID: <1770263544.12345.abcdef@mail.example/x>\n" in again and CODEC.decode(again) == message
    other = replace(message, id="other")  # the header is no longer its own
    assert b"<other@ignite.local>" in CODEC.encode(other) and CODEC.decode(CODEC.encode(other)) == other


def test_a_new_id_has_the_three_parts_of_the_format_and_is_new() -> None:
    ids = {new_id(1_770_263_544.9) for _ in range(10_000)}
    assert len(ids) == 10_000
    epoch, pid, hash = check_id(ids.pop()).split(".")
    assert epoch == "1770263544" and pid.isdecimal() and len(hash) == 16


@pytest.mark.parametrize(("text", "number"), [("critical", 9), ("HIGH", 6), ("normal", 0), ("low", -6), ("-42", -42)])
def test_a_priority_is_read_by_name_or_number(text: str, number: int) -> None:
    assert CODEC.decode(FOREIGN.replace("Priority: high", f"Priority: {text}").encode()).priority == number


def test_a_message_with_several_recipients_becomes_one_for_each_with_an_id_of_its_own() -> None:
    recipients = Recipients(("leader", "strategist"), ("architect", "leader"))
    copies = split(replace(TASK, headers={}), recipients)
    assert [name for name, _ in copies] == ["leader", "strategist", "architect"]
    assert [copy.id for _, copy in copies] == [TASK.id, f"{TASK.id}-2", f"{TASK.id}-3"]
    for name, copy in copies:
        data = CODEC.encode(check_message(copy), queue=name)
        assert b"\nTo: leader, strategist\nCc: architect, leader\n" in data
        assert CODEC.decode(data) == copy and named(copy) == recipients
    assert split(replace(TASK, headers={}), recipients) == copies  # sending again repeats nothing


def test_a_message_with_one_recipient_names_the_queue_it_lies_in() -> None:
    ((name, copy),) = split(TASK, Recipients(("leader",)))
    assert name == "leader" and copy == TASK and b"\nTo: leader\n" in CODEC.encode(copy, queue=name)


def test_one_recipient_and_a_copy_are_both_named_in_both_files() -> None:
    for name, copy in split(TASK, Recipients(("leader",), ("architect",))):
        assert b"\nTo: leader\nCc: architect\n" in CODEC.encode(copy, queue=name)


def test_recipients_that_climb_or_are_missing_are_refused() -> None:
    with pytest.raises(InvalidName):
        split(TASK, Recipients(("leader", "../etc")))
    with pytest.raises(InvalidHeader, match="at least one"):
        address(TASK, Recipients((), ("leader",)))


def without(name: str) -> bytes:
    return "".join(line for line in FOREIGN.splitlines(True) if not line.startswith(f"{name}:")).encode()


def with_line(line: str | bytes) -> bytes:
    return (line.encode() if isinstance(line, str) else line) + b"\n" + FOREIGN.encode()


def changed(old: str, new: str) -> bytes:
    assert old in FOREIGN
    return FOREIGN.replace(old, new).encode()


HOSTILE: dict[str, tuple[bytes, str]] = {
    **{
        f"no {name}": (without(name), "MissingHeader")
        for name in (
            "MIME-Version",
            "Message-ID",
            "From",
            "To",
            "Date",
            "X-IGNITE-Type",
            "X-IGNITE-Priority",
            "Content-Type",
            "Content-Transfer-Encoding",
        )
    },
    "nothing": (b"", "NotMime"),
    "cut short in the headers": (FOREIGN.encode()[:200], "NotMime"),
    "headers without a body": (FOREIGN.partition("\n\n")[0].encode() + b"\n", "NotMime"),
    "JSON": (b'{"payload": 1}\n\n', "MissingHeader"),
    "20,000 headers": (with_line("\n".join(f"X-{n}: 1" for n in range(20_000))), "TooManyHeaders"),
    "20,000 short headers of 10 bytes": (b"".join(b"a%d:\n" % n for n in range(20_000)) + b"\n", "TooManyHeaders"),
    "headers of 2 MB": (with_line("\n ".join(["X-Long: a", *["b" * 8000] * 250])), "TooLarge"),
    "a line of 10,000": (with_line("X-Long: " + "a" * 10_000), "TooLarge"),
    "a header twice": (with_line("From: somebody"), "DuplicateHeader"),
    "a header twice in other case": (with_line("x-ignite-shade: red"), "DuplicateHeader"),
    "a header without a colon": (with_line("Hello there"), "InvalidHeader"),
    "a header without a name": (with_line(": value"), "InvalidHeader"),
    "a name with a space": (with_line("X Y: value"), "InvalidHeader"),
    "a name of 8 bits": (with_line("색: 파랑"), "InvalidHeader"),
    "a continuation of nothing": (with_line(" value"), "InvalidHeader"),
    "CR inside a value": (with_line(b"X-A: b\rFrom: c"), "InvalidHeader"),
    "NUL inside a value": (with_line(b"X-A: b\0"), "InvalidHeader"),
    "escape inside a value": (with_line(b"X-A: \x1b[2J"), "InvalidHeader"),
    "a line break by encoded word": (with_line("X-A: =?utf-8?q?a=0AFrom:_b?="), "InvalidHeader"),
    "a type with a line break by encoded word": (
        changed("Type: task_assignment", "Type: =?utf-8?b?YQpi?="),
        "InvalidHeader",
    ),
    "headers in Latin-1": (with_line("X-A: é".encode("latin-1")), "NotUtf8"),
    "an encoded word of another charset": (with_line("X-A: =?koi8-r?b?YQ==?="), "InvalidEncoding"),
    "an encoded word that is no base64": (with_line("X-A: =?utf-8?b?a*b?="), "InvalidEncoding"),
    "an encoded word that is no UTF-8": (with_line("X-A: =?utf-8?b?/w==?="), "InvalidEncoding"),
    "MIME 2.0": (changed("MIME-Version: 1.0", "MIME-Version: 2.0"), "NotMime"),
    "an id without brackets": (changed("<1770263544.12345.abcdef@ignite.local>", "abc"), "InvalidHeader"),
    "a sender that climbs": (changed("From: coordinator", "From: ../x"), "InvalidName"),
    "a sender with brackets": (changed("From: coordinator", 'From: "C" <c@ignite.local>'), "InvalidName"),
    "a recipient that climbs": (changed("To: ignitian_1", "To: leader, ../../etc"), "InvalidName"),
    "20,000 brackets as recipient": (changed("To: ignitian_1", "To: " + "(" * 8000), "InvalidName"),
    "a recipient of no name": (changed("To: ignitian_1", "To: leader,,x"), "InvalidName"),
    "a date in words": (changed("Mon, 10 Feb 2026 12:00:00 +0900", "yesterday"), "InvalidDate"),
    "a date as ISO writes it": (changed("Mon, 10 Feb 2026 12:00:00 +0900", "2026-02-10T12:00:00Z"), "InvalidDate"),
    "the 31st of February": (changed("10 Feb", "31 Feb"), "InvalidDate"),
    "hour 25": (changed("12:00:00", "25:00:00"), "InvalidDate"),
    "the year 1": (changed("2026", "0001"), "InvalidInput"),
    "a month that is none": (changed("Feb", "Fab"), "InvalidDate"),
    "a zone that is none": (changed("+0900", "XYZ"), "InvalidDate"),
    "priority urgent": (changed("Priority: high", "Priority: urgent"), "InvalidInput"),
    "priority 101": (changed("Priority: high", "Priority: 101"), "InvalidInput"),
    "HTML": (changed("text/x-yaml", "text/html"), "NotMime"),
    "several parts": (changed("text/x-yaml; charset=utf-8", "multipart/mixed; boundary=x"), "NotMime"),
    "UTF-16": (changed("charset=utf-8", "charset=utf-16"), "InvalidEncoding"),
    "quoted-printable": (changed("Encoding: 8bit", "Encoding: quoted-printable"), "InvalidEncoding"),
    "base64 that is none": (changed("Encoding: 8bit", "Encoding: base64"), "InvalidEncoding"),
    "attributes that are no JSON": (with_line("X-Pabal-Attributes: {"), "NotJson"),
    "attributes that are a list": (with_line("X-Pabal-Attributes: []"), "InvalidHeader"),
    "headers that are numbers": (with_line('X-Pabal-Headers: {"a": 1}'), "InvalidHeader"),
    "a version in words": (with_line("X-Pabal-Version: two"), "InvalidHeader"),
    "an expiry in words": (with_line("X-Pabal-Expires-At: soon"), "InvalidDate"),
    "an expiry without a zone": (with_line("X-Pabal-Expires-At: 2026-01-01T00:00:00"), "InvalidDate"),
    "a body that is no YAML": (FOREIGN.encode() + b"a: b: c\n", "NotYaml"),
    "a body that is no UTF-8": (FOREIGN.encode() + b"b: \xff\n", "NotUtf8"),
    "a body with an alias": (FOREIGN.encode() + b"a: &a [1]\nb: *a\n", "AliasNotAllowed"),
    "a body with a tag": (FOREIGN.encode() + b"a: !!python/object:os.system {}\n", "UnsafeTag"),
    "a body of 5 MB": (FOREIGN.encode() + b"#" * (5 << 20), "TooLarge"),
}


@pytest.mark.parametrize(("data", "code"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_by_name(data: bytes, code: str) -> None:
    with pytest.raises(DecodeError) as caught:
        CODEC.decode(data, id="given", at=1.0)
    assert caught.value.reason.split(":")[0] == code
    assert caught.value.data == data
    assert len(caught.value.reason) < 300


@pytest.mark.parametrize("bad", ["a\nFrom: b", "a\rb", "a\0b", "a\x1b[2J"])
@pytest.mark.parametrize("field", ["type", "thread_id", "trace_id", "group", "reply_to", "dedup_key"])
def test_what_would_inject_a_header_is_never_written(field: str, bad: str) -> None:
    with pytest.raises(InvalidHeader):
        CODEC.encode(replace(TASK, **{field: bad}))
    with pytest.raises(InvalidHeader):
        CODEC.encode(replace(TASK, headers={"X-IGNITE-A": bad}))


def test_a_header_name_that_would_inject_is_carried_where_it_cannot() -> None:
    message = replace(TASK, headers={"From: x\nTo": "y", "From": "z", "X-Pabal-Group": "g"})
    data = CODEC.encode(message, queue="leader")
    assert data.count(b"\nFrom: ") == 1 and b"\nFrom: coordinator\n" in data and b"\nX-Pabal-Group" not in data


def test_what_is_too_large_to_be_read_back_is_not_written() -> None:
    with pytest.raises(TooLarge, match="4194304 bytes as YAML"):
        CODEC.encode(replace(TASK, body="a" * (4 << 20)))
    with pytest.raises(TooLarge, match="headers"):
        CODEC.encode(replace(TASK, attributes={"a": "a" * (1 << 20)}))
    with pytest.raises(InvalidText):
        CODEC.encode(replace(TASK, body="\ud800"))
    with pytest.raises(InvalidText):
        CODEC.encode(replace(TASK, type="\ud800"))


def test_neither_pabal_nor_its_commands_load_yaml_before_they_need_it() -> None:
    code = "import sys, pabal, pabal.cli.main; print('yaml' in sys.modules, 'pabal.codecs.mime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"
