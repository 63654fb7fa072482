"""Clients of SQS as their users run them, over a real socket: the aws command, JavaScript, Java, Celery."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import Running
from tests.services import bringing
from tests.services.bringing import TIMEOUT, brought
from tests.services.npm import installed, needed, run_node
from tests.waiting import until

CLIENTS = Path(__file__).parent / "clients"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def done(command: list[str | Path], **settings: Any) -> str:
    finished: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, timeout=240, **settings
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def javascript(program: str, served: Running) -> Any:
    folder = installed("gateway-clients", CLIENTS, "the JavaScript SDK")
    shutil.copy(CLIENTS / program, folder / program)  # so that it finds the packages
    finished = run_node(folder, program, served.address)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def test_the_javascript_sdk(served: Running) -> None:
    assert javascript("client.mjs", served) == {
        "bodies": ["first ✓", "1", "2", "3"],
        "bytes": [0, 255],
        "rising": True,
        "left": "00",
        "listed": 1,
        "refused": "QueueDoesNotExist",
    }


def test_sqs_consumer(served: Running) -> None:
    assert javascript("consumer.mjs", served) == {"handled": list(range(25)), "failed": 2}


def test_the_java_sdk(served: Running) -> None:
    def bring(folder: Path) -> None:
        pom, target = CLIENTS / "pom.xml", f"-DoutputDirectory={folder}"
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", target]
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT)

    def jars() -> Path:
        return brought("sqs-java", CLIENTS / "pom.xml", bring)

    needed(bringing.missing(("mvn", "java", "javac"), jars, "the jars of the Java SDK, which Maven"))
    said = done(["java", "-cp", f"{jars()}/*", CLIENTS / "Client.java", served.address])
    assert said.splitlines() == ["first ✓,1,2", "2", "25 AWS.SimpleQueueService.NonExistentQueue"]


def test_the_aws_command(served: Running, tmp_path: Path) -> None:
    needed("" if shutil.which("aws") else "aws: run scripts/system-packages")
    where = {**os.environ, **CREDENTIALS, "HOME": str(tmp_path), "AWS_PAGER": ""}

    def aws(*arguments: str) -> Any:
        said = done(["aws", "--endpoint-url", served.address, "--output", "json", "sqs", *arguments], env=where)
        return json.loads(said) if said else {}

    url = aws("create-queue", "--queue-name", "shell", "--attributes", "VisibilityTimeout=60")["QueueUrl"]
    attributes = json.dumps({"kind": {"DataType": "String", "StringValue": "new"}})
    sent = aws("send-message", "--queue-url", url, "--message-body", "안녕", "--message-attributes", attributes)
    received = ["--message-attribute-names", "All", "--wait-time-seconds", "20"]
    [message] = aws("receive-message", "--queue-url", url, *received)["Messages"]
    assert (message["Body"], message["MessageId"]) == ("안녕", sent["MessageId"])
    assert message["MessageAttributes"]["kind"]["StringValue"] == "new"
    aws("delete-message", "--queue-url", url, "--receipt-handle", message["ReceiptHandle"])
    counted = aws("get-queue-attributes", "--queue-url", url, "--attribute-names", "All")["Attributes"]
    assert (counted["ApproximateNumberOfMessagesNotVisible"], counted["VisibilityTimeout"]) == ("0", "60")
    assert url in aws("list-queues", "--queue-name-prefix", "shell")["QueueUrls"]


CELERY = """
from celery import Celery

app = Celery("tasks", broker="sqs://any:any@{host}//")
app.conf.update(
    broker_transport_options={{"region": "eu-west-1", "is_secure": False, "wait_time_seconds": 5}},
    task_default_queue="celery-tasks",
    worker_enable_remote_control=False,
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
)


@app.task(bind=True, max_retries=3)
def note(self, number):
    if number % 10 == 3 and self.request.retries == 0:
        raise self.retry(countdown=1)
    with open("{out}", "a") as out:
        out.write(f"{{number}}\\n")
"""


def test_celery(served: Running, tmp_path: Path) -> None:
    pytest.importorskip("celery")
    out = tmp_path / "out"
    out.touch()
    (tmp_path / "tasks.py").write_text(CELERY.format(host=served.address.removeprefix("http://"), out=out))
    environment = {**os.environ, **CREDENTIALS, "PYTHONWARNINGS": "default", "PYTHONPATH": str(tmp_path)}
    send = "import tasks; [tasks.note.delay(n) for n in range(30)]"
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "threads", "--concurrency", "4"]
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        done([sys.executable, "-c", send], cwd=tmp_path, env=environment)
        until(
            lambda: len(set(out.read_text().split())) == 30 or worker.poll() is not None,
            seconds=120,
        )
        assert sorted(map(int, out.read_text().split())) == list(range(30)), (tmp_path / "log").read_text()
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    finally:
        worker.kill()
        worker.wait()
