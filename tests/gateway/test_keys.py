"""Keys and signatures: who may do what, and requests that are forged, late or changed on their way."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from click.testing import CliRunner

from pabal.cli.main import cli
from pabal.errors import InvalidInput
from pabal.gateway.serve import Settings, serve
from pabal.gateway.signature import Key, Keys, Request, new_key, read_keys, write_keys
from pabal.gateway.sqs.errors import SqsError
from pabal.testing import ManualClock
from tests.gateway.conftest import client_of, gateway
from tests.gateway.test_wire import fetch

SECRET = "a secret of forty characters or so, here"
KEY = Key("PABALKEY", SECRET, "shop", ("orders-*",), ("send", "look"))


def signed(
    body: bytes = b"{}",
    *,
    secret: str = SECRET,
    key: str = KEY.access_key,
    query: bool = False,
    expires: int = 3600,
) -> Request:
    """Return a request as botocore signs it, at the time that its clock says."""
    url = "http://127.0.0.1:9324/000000000000/a%20b?x=1&b=%ED%95%9C&a="
    asked = AWSRequest("POST", url, {"X-Amz-Target": "AmazonSQS.ListQueues"}, body)
    scope = Credentials(key, secret), "sqs", "eu-west-1"
    (SigV4QueryAuth(*scope, expires=expires) if query else SigV4Auth(*scope)).add_auth(asked)
    made = asked.prepare()
    _, _, rest = made.url.partition("127.0.0.1:9324")
    path, _, text = rest.partition("?")
    headers = {name.lower(): str(value) for name, value in made.headers.items()} | {"host": "127.0.0.1:9324"}
    return Request("POST", path, text, headers, body)


def now() -> ManualClock:
    return ManualClock(datetime.now(UTC).timestamp())


@pytest.mark.parametrize("query", [False, True])
def test_a_signature_proves_the_key_the_time_and_every_part(query: bool) -> None:
    clock = now()
    keys = Keys([KEY], clock)
    request = signed(b"" if query else b"{}", query=query)
    assert keys.verified(request) is KEY
    changed = [
        request._replace(method="GET"),
        request._replace(path="/000000000000/other"),
        request._replace(query=request.query + "&more=1"),
        request._replace(headers={**request.headers, "host": "evil"}),
        signed(secret="wrong", query=query),
    ]
    if not query:
        changed.append(request._replace(body=b'{"QueueName": "x"}'))
    for each in changed:
        with pytest.raises(SqsError) as caught:
            keys.verified(each)
        assert caught.value.code == "SignatureDoesNotMatch"
    for wrong, code in (
        (signed(key="NOBODY", query=query), "InvalidClientTokenId"),
        (request._replace(headers={"host": "127.0.0.1:9324"}, query=""), "MissingAuthenticationToken"),
        (request._replace(headers={"authorization": "Basic x"}, query=""), "IncompleteSignature"),
    ):
        with pytest.raises(SqsError) as caught:
            keys.verified(wrong)
        assert caught.value.code == code
    clock.advance(4000)
    with pytest.raises(SqsError) as caught:
        keys.verified(request)
    assert caught.value.code == "RequestExpired"


def test_a_signed_url_counts_for_the_time_that_it_says() -> None:
    clock = now()
    keys = Keys([KEY], clock)
    short, long = (signed(b"", query=True, expires=seconds) for seconds in (60, 3600))
    clock.advance(50)
    assert keys.verified(short) is KEY
    clock.advance(50)
    with pytest.raises(SqsError) as caught:
        keys.verified(short)
    assert caught.value.code == "RequestExpired"
    clock.advance(3000)
    assert keys.verified(long) is KEY
    for seconds in (0, 604_801):
        with pytest.raises(SqsError) as caught:
            keys.verified(signed(b"", query=True, expires=seconds))
        assert caught.value.code == "IncompleteSignature"


def test_keys_are_made_listed_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "keys"

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(cli, ["gateway-keys", *arguments, "--keys", str(path)], prog_name="pabal")
        assert done.exit_code == 0, done.output
        return done.output

    made = json.loads(run("add", "--name", "shop", "--queue", "orders-*", "--right", "send", "--json"))
    assert path.stat().st_mode & 0o777 == 0o600 and len(made["secret"]) >= 40
    assert run("add").startswith("AWS_ACCESS_KEY_ID=PABAL")
    listed = run("list")
    assert made["accessKey"] in listed and made["secret"] not in listed
    assert [key["name"] for key in json.loads(run("list", "--json"))["keys"]] == ["shop", ""]
    run("remove", made["accessKey"])
    [left] = read_keys(path)
    assert left.name == ""
    path.chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        read_keys(path)
    with pytest.raises(InvalidInput, match="gateway-keys add"):
        serve(Settings(url="memory:", host="0.0.0.0"), print)


def test_a_gateway_with_keys_serves_those_who_have_them_and_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    url = f"sqlite:{tmp_path}/jobs.db"
    runner = CliRunner()

    def add(*options: str) -> dict[str, Any]:
        done = runner.invoke(cli, ["gateway-keys", "add", "--keys", str(path), "--json", *options], prog_name="pabal")
        found: dict[str, Any] = json.loads(done.output)
        return found

    chief, shop = add(), add("--name", "shop", "--queue", "orders-*", "--right", "send", "--right", "look")
    with gateway(url, tmp_path / "log", "--keys", str(path)) as running:
        boss = client_of(running.address, key=chief["accessKey"], secret=chief["secret"])
        orders, other = (boss.create_queue(QueueName=name)["QueueUrl"] for name in ("orders-1", "other"))
        client = client_of(running.address, key=shop["accessKey"], secret=shop["secret"])
        client.send_message(QueueUrl=orders, MessageBody="x")
        [message] = boss.receive_message(QueueUrl=orders, AttributeNames=["All"])["Messages"]
        assert message["Attributes"]["SenderId"] == "shop"
        for act in (
            lambda: client.send_message(QueueUrl=other, MessageBody="x"),
            lambda: client.receive_message(QueueUrl=orders),
            lambda: client.delete_queue(QueueUrl=orders),
        ):
            with pytest.raises(ClientError) as caught:
                act()  # type: ignore[no-untyped-call]
            assert caught.value.response["Error"]["Code"] == "AccessDenied"
        assert client.list_queues()["QueueUrls"] == [orders]
        part = add("--queue", "orders-*")
    with gateway(url, tmp_path / "log", "--keys", str(path)) as running:
        client = client_of(running.address, key=part["accessKey"], secret=part["secret"])
        arns = {name: f"arn:aws:sqs:eu-west-1:000000000000:{name}" for name in ("orders-1", "other")}
        redrive = json.dumps({"deadLetterTargetArn": arns["other"], "maxReceiveCount": 1})
        for act in (
            lambda: client.start_message_move_task(SourceArn=arns["other"], DestinationArn=arns["orders-1"]),
            lambda: client.start_message_move_task(SourceArn=arns["orders-1"], DestinationArn=arns["other"]),
            lambda: client.list_message_move_tasks(SourceArn=arns["other"]),
            lambda: client.create_queue(QueueName="evil"),
            lambda: client.get_queue_url(QueueName="other"),
            lambda: client.set_queue_attributes(QueueUrl=orders, Attributes={"RedrivePolicy": redrive}),
        ):
            with pytest.raises(ClientError) as caught:
                act()
            assert caught.value.response["Error"]["Code"] == "AccessDenied"
        stranger = client_of(running.address)
        with pytest.raises(ClientError) as caught:
            stranger.list_queues()
        assert caught.value.response["Error"]["Code"] == "InvalidClientTokenId"
        with pytest.raises(HTTPError) as refused:
            urlopen(HttpRequest(f"{running.address}/_aws/sqs/messages?QueueUrl={orders}"))
        with refused.value:
            assert refused.value.code == 403
    with gateway(url, tmp_path / "log", "--read-only") as running:
        looker = client_of(running.address)
        assert len(looker.list_queues()["QueueUrls"]) == 2
        with pytest.raises(ClientError) as caught:
            looker.send_message(QueueUrl=orders, MessageBody="x")
        assert caught.value.response["Error"]["Code"] == "AccessDenied"


def test_metrics_need_a_key_that_may_look_at_all_queues(tmp_path: Path) -> None:
    every, some, blind = new_key("", [], ["look"]), new_key("", ["a-*"], ["look"]), new_key("", [], ["send"])
    write_keys(tmp_path / "keys", [every, some, blind])
    with gateway(f"sqlite:{tmp_path}/jobs.db", tmp_path / "log", "--keys", str(tmp_path / "keys")) as running:

        def metrics(**headers: str) -> tuple[int, bytes]:
            return fetch(f"{running.address}/metrics", None, **headers)[::2]

        def bearer(key: Key) -> str:
            return f"Bearer {key.access_key}:{key.secret}"

        assert metrics()[0] == metrics(authorization="Bearer x:y")[0] == metrics(authorization="nonsense")[0] == 401
        assert metrics(authorization=bearer(some))[0] == metrics(authorization=bearer(blind))[0] == 403
        status, text = metrics(authorization=bearer(every))
        assert status == 200 and b"pabal_" in text
        asked = AWSRequest("GET", f"{running.address}/metrics", {"Host": running.address.removeprefix("http://")})
        SigV4Auth(Credentials(every.access_key, every.secret), "sqs", "eu-west-1").add_auth(asked)
        assert metrics(**dict(asked.headers.items()))[0] == 200
        assert fetch(f"{running.address}/healthz")[0] == fetch(f"{running.address}/readyz")[0] == 200
