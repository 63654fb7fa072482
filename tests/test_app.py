"""The application: routing by type, sync and async functions, schedules, stops that count no attempt."""

import asyncio
import logging
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pabal
from pabal import App, Delivery, InvalidInput, State
from pabal.store import FailureCode
from tests.waiting import until


class Email(msgspec.Struct):
    to: str


@pytest.fixture(params=["sqlite", "file"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> App:
    return App(f"{request.param}:{tmp_path}/store")


def test_messages_go_to_the_function_of_their_type(app: App) -> None:
    sent: list[Any] = []

    @app.on("emails", type="send", body=Email, concurrency=4)
    def send(email: Email) -> None:
        sent.append(email.to)

    @app.on("emails", type="later")
    async def later(delivery: Delivery) -> None:
        await asyncio.sleep(0)
        sent.append(delivery.message.type)

    @app.on("numbers", timeout=5)
    async def number(delivery: Delivery) -> None:
        sent.append(delivery.body)
        app.queue("emails").publish({"to": "from a function"}, type="send")

    emails = app.queue("emails")
    emails.update_policy(retry=pabal.RetryPolicy(limit=1))
    for name in "abc":
        emails.publish({"to": name}, type="send")
    emails.publish({}, type="later")
    wrong, odd = emails.publish({"to": 5}, type="send"), emails.publish(1, type="odd")
    app.queue("numbers").publish(7)
    app.work(wait=0.5)
    assert sorted(map(str, sent)) == ["7", "a", "b", "c", "from a function", "later"]
    with pabal.connect(app.url) as mq:
        found = {each.id: each.failure for each in mq.queue("emails").browse(State.DEAD)}
        unfit, unserved = found[wrong.id], found[odd.id]
        assert unfit is not None and unfit.code == FailureCode.VALIDATION_ERROR
        assert unserved is not None and "NO_HANDLER: no function serves type 'odd' of emails" in unserved.reason
        assert "later, send" in unserved.reason


def test_a_function_is_called_at_the_times_of_its_schedule(app: App) -> None:
    @app.every(1, queue="reports", type="tick")
    def tick() -> dict[str, int]:
        return {"n": 1}

    @app.every(1, queue="reports", name="other")
    async def another() -> str:
        return "async"

    seen: dict[str, Delivery] = {}

    @app.on("reports")
    def report(delivery: Delivery) -> None:
        seen[delivery.message.id] = delivery

    worker = threading.Thread(target=app.work)
    worker.start()
    until(lambda: {id.partition(".")[0] for id in seen} == {"tick", "other"})
    app.stop()
    worker.join()
    ticks = [each for id, each in seen.items() if id.startswith("tick.")]
    assert ticks[0].body == {"n": 1} and ticks[0].message.type == "tick"


def test_what_cannot_be_served_is_refused_when_it_is_declared(app: App) -> None:
    @app.on("q", type="a")
    def first(delivery: Delivery) -> None: ...

    def generator(delivery: Delivery) -> Any:
        yield 1

    for wrong, said in (
        (lambda: app.on("q", type="a")(first), "first serves type 'a' of q already"),
        (lambda: app.on("q")(generator), "generator"),
        (lambda: app.on("q", concurrency=0), "concurrency"),
        (lambda: app.on("../q"), "queue name"),
        (lambda: app.every("9", queue="q")(first), "five fields"),
        (lambda: App(app.url).work(), "serves no queue"),
    ):
        with pytest.raises(InvalidInput, match=said):
            wrong()


def test_a_stop_gives_back_what_is_running_and_counts_no_attempt(app: App, caplog: pytest.LogCaptureFixture) -> None:
    begun, end = threading.Semaphore(0), threading.Event()

    @app.on("jobs", concurrency=2)
    def never(delivery: Delivery) -> None:
        begun.release()
        end.wait()

    @app.on("jobs", type="async")
    async def never_async(delivery: Delivery) -> None:
        begun.release()
        await asyncio.sleep(3600)

    @app.on("broken")
    def broken(delivery: Delivery) -> None:
        raise SystemExit("the end")  # it ends the work of all queues

    jobs = app.queue("jobs")
    for kind in ("", "", "async"):
        jobs.publish(1, type=kind)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            app.work(grace=0.1)
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(3):
        begun.acquire()
    app.queue("broken").publish(1)
    thread.join()
    end.set()
    assert [str(error) for error in errors] == ["the end"] and "handler raised" not in caplog.text
    with pabal.connect(app.url) as mq:
        assert [each.attempt for each in mq.queue("jobs").browse(State.READY)] == [0, 0, 0]
        assert [each.attempt for each in mq.queue("broken").browse(State.READY)] == [1]


def test_a_function_that_takes_long_is_seen_and_one_with_a_timeout_fails(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pabal")
    cancelled = threading.Event()

    @app.on("long", visibility=0.2)  # on a busy machine its lease may end; then it comes again
    def long(delivery: Delivery) -> None:
        until(lambda: "is held for more than" in caplog.text)

    @app.on("hung", timeout=0.2)
    async def hung(delivery: Delivery) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    app.queue("long").update_policy(retry=pabal.RetryPolicy(limit=1000, initial=0.0))
    app.queue("hung").update_policy(retry=pabal.RetryPolicy(limit=1))
    names = ("long", "hung")
    for name in names:
        app.queue(name).publish(1, id=name)
    app.work(wait=0.3)
    with pabal.connect(app.url) as mq:
        entries = [mq.queue(name).find(name) for name in names]
    assert entries[0] is not None and entries[0].state is State.DONE and cancelled.is_set()
    assert entries[1] is not None and entries[1].failure is not None and "HANDLER_TIMEOUT" in entries[1].failure.reason


@pytest.mark.parametrize("where", ["function", "task"])
def test_sys_exit_in_an_async_function_does_not_hang(app: App, where: str) -> None:
    """In the function it ends the work, as in a plain one. In a task of its own the loop goes on."""
    seen: list[object] = []

    async def leave() -> None:
        sys.exit(3)

    @app.on("jobs")
    async def serve(delivery: Delivery) -> None:
        if delivery.body == "leave" and where == "function":
            await leave()
        elif delivery.body == "leave":
            task = asyncio.create_task(leave())
            await asyncio.wait([task])
        seen.append(delivery.body)

    app.queue("jobs").publish("leave")
    if where == "function":
        with pytest.raises(SystemExit):
            app.work(wait=0)
        assert seen == []
    else:
        app.queue("jobs").publish("next")
        assert app.work(wait=0) == 2 and seen == ["leave", "next"]
