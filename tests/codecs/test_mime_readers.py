"""Other programs read our files: Python's `email` and, on a spool of them, the mail program notmuch."""

import email
import email.policy
import json
import os
import shutil
import subprocess
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
import yaml

from pabal.codecs.mime import MimeCodec
from pabal.message import Message
from tests.codecs.test_mime import BYTES, FULL, TASK

CODEC = MimeCodec()


def as_email(message: Message, queue: str) -> EmailMessage:
    found = email.message_from_bytes(CODEC.encode(message, queue=queue), policy=email.policy.default)
    assert isinstance(found, EmailMessage)
    return found


def test_pythons_email_reads_every_header_and_the_body() -> None:
    mail = as_email(TASK, "ignitian_1")
    assert not mail.defects
    assert (mail["Message-ID"], mail["From"], mail["To"]) == (f"<{TASK.id}@ignite.local>", "coordinator", "ignitian_1")
    assert mail["Date"].datetime.timestamp() == TASK.created_at
    assert (mail["X-IGNITE-Type"], mail["X-IGNITE-Priority"]) == ("task_assignment", "high")
    assert mail.get_content_type() == "text/x-yaml" and mail.get_content_charset() == "utf-8"
    assert yaml.safe_load(mail.get_content()) == TASK.body


def test_pythons_email_reads_encoded_words_and_bytes() -> None:
    mail = as_email(FULL, "telemetry")
    assert mail["X-IGNITE-Type"] == FULL.type and mail["X-IGNITE-Colour"] == FULL.headers["X-IGNITE-Colour"]
    assert (mail["To"], mail["Cc"]) == ("leader, strategist", "architect")
    assert as_email(BYTES, "blobs").get_content() == BYTES.body


@pytest.fixture
def notmuch(tmp_path: Path) -> str:
    program = shutil.which("notmuch")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail("notmuch is missing: run scripts/system-packages")
        pytest.skip("notmuch is missing: run scripts/system-packages")
    return program


def test_a_mail_program_reads_a_spool_of_our_messages(notmuch: str, tmp_path: Path) -> None:
    spool = tmp_path / "queue"
    for number in range(20):
        place = spool / f"ignitian_{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        body = {"title": f"glimmer{number}", "notes": "여러 줄\n둘째 줄\n"}
        message = Message(
            id=f"1770692400.{number}.ab", body=body, type="task_assignment", sender="coordinator", created_at=1.77e9
        )
        (place / f"task_assignment_{number:016}.mime").write_bytes(CODEC.encode(message, queue=place.name))
    (spool / "ignitian_0" / "full.mime").write_bytes(CODEC.encode(FULL))
    settings = tmp_path / "config"
    settings.write_text(f"[database]\npath={spool}\n[user]\nname=t\nprimary_email=t@ignite.local\n[new]\ntags=new\n")

    def run(*arguments: str) -> str:
        environment = {**os.environ, "NOTMUCH_CONFIG": str(settings), "HOME": str(tmp_path)}
        done = subprocess.run([notmuch, *arguments], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "Added 21 new messages" in run("new")
    assert run("count", "from:coordinator").strip() == "20"
    assert run("count", "to:ignitian_1").strip() == "7"
    ((((shown, _),),),) = (json.loads(run("show", "--format=json", "glimmer7")),)
    assert shown["id"] == "1770692400.7.ab@ignite.local" and shown["headers"]["From"] == "coordinator"
    part: dict[str, Any] = shown["body"][0]
    assert part["content-type"] == "text/x-yaml"
    assert yaml.safe_load(part["content"]) == {"title": "glimmer7", "notes": "여러 줄\n둘째 줄\n"}
    assert run("count", "to:architect").strip() == "1"
