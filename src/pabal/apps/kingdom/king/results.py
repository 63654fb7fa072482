"""Results become notices: the outcome of a task, a question or a proclamation. Then the event is archived.

A result is acknowledged together with its notices, so its notices are published once, whatever is killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pabal.apps.kingdom.documents import Notice, Result, Task, document_of, read, result_of
from pabal.apps.kingdom.envoy.questions import Questions, question_of
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.king.archive import Archive, Ending
from pabal.apps.kingdom.layout import MESSAGES, RESULTS, TASKS
from pabal.apps.kingdom.outside_tasks import outside_task
from pabal.errors import InvalidInput
from pabal.queues.delivery import Delivery
from pabal.store import FailureCode, Outcome, Settlement, State

BATCH = 100
CONVERSATION_SECONDS = 3600
UNREADABLE_SECONDS = 60.0
_MARKS = {"success": "✅", "failed": "❌", "killed": "❌", "skipped": "⏭️"}
_KINDS = {
    "success": "task.completed",
    "skipped": "task.completed",
    "failed": "task.failed",
    "killed": "task.failed",
    "needs_human": "task.needs_human",
}


class Results:
    """A task of the King's service."""

    def __init__(self, home: Home, archive: Archive) -> None:
        self._home = home
        self._archive = archive
        self._more = False
        self._reported: set[str] = set()  # the results that cannot be read and were reported

    def step(self) -> None:
        found = self._home.queue(RESULTS).lease(BATCH, visibility=self._home.config.lease_seconds)
        self._more = len(found) >= BATCH
        self._settle(found)
        self._fail_unreadable()

    def next_due(self) -> float:
        return 0.0 if self._more else self._home.king.intervals.result_check_seconds

    def _settle(self, deliveries: Sequence[Delivery]) -> None:
        queue = self._home.queue(RESULTS)
        read_ones: list[tuple[Delivery, Result]] = []
        for delivery in deliveries:
            try:
                read_ones.append((delivery, self._completed(read(Result, delivery.message.body))))
            except InvalidInput as exc:
                delivery.fail(FailureCode.VALIDATION_ERROR, f"{exc.code}: {exc}", final=True)
        settlements = []
        for delivery, found in read_ones:
            made = notices(self._home, found)
            if found.status == "needs_human":
                # Recorded before it is sent: it can be answered whether or not there is an envoy.
                Questions(self._home).ask(question_of(self._home, made[0]))
            settlements.append(
                Settlement(delivery.receipt, queue.settler.done([self._home.draft(notice) for notice in made]))
            )
        outcomes = self._home.store.settle(settlements) if settlements else []
        done = [found for (_, found), outcome in zip(read_ones, outcomes, strict=True) if outcome is Outcome.APPLIED]
        for found in done:
            facts = {"task": found.task_id, "general": found.target_general, "status": found.status}
            self._home.journal.note(_KINDS[found.status], "king", **facts, reason=found.error or found.reason)
        self._archive.finish(done)
        self._archive.complete({found.event_id: Ending("", found.task_id) for found in done if found.event_id})

    def _completed(self, found: Result) -> Result:
        """Add the facts about the task, if another program than a general wrote the result."""
        if found.event_id:
            return found
        task = self._task_of(found.task_id)
        return found if task is None else result_of(task, document_of(found))

    def _task_of(self, task_id: str) -> Task | None:
        """Return a task that a general has or had, or that another program has in hand."""
        entry = self._home.queue(TASKS).find(task_id)
        if entry is None or entry.message is None:
            return outside_task(self._home, task_id)
        return read(Task, entry.message.body)

    def _fail_unreadable(self) -> None:
        """Report a result that could not be read for a minute as failed, once, and archive its event."""
        now = self._home.clock.now()
        for entry in self._home.queue(RESULTS).browse(State.CORRUPT):
            at = entry.failure.at if entry.failure else 0.0
            task_id = entry.id.partition("~")[0].removesuffix(".json")
            if entry.id in self._reported or now - at < UNREADABLE_SECONDS or not task_id.startswith("task-"):
                continue
            reason = f"its result cannot be read: {entry.failure.reason if entry.failure else 'damaged'}"[:500]
            task = self._task_of(task_id)
            self._reported.add(entry.id)
            if task is None or self._archive.is_finished(task_id):
                continue
            result = result_of(task, {"status": "failed", "summary": "unreadable result", "error": reason})
            drafts = [self._home.draft(each, key=f"unreadable-{task_id}") for each in notices(self._home, result)]
            if not self._home.queue(MESSAGES).publish_many(drafts)[0].duplicate:
                self._home.journal.note("task.failed", "king", task=task_id, reason=reason)
            self._archive.finish([result])
            self._archive.complete({result.event_id: Ending("", task_id)})


def notices(home: Home, found: Result) -> list[Notice]:
    """Return the notices of a result."""
    if found.status == "needs_human":
        return [_question(home, found)]
    made = [_outcome(home, found)]
    if found.proclamation is not None:
        proclamation = found.proclamation
        made.append(
            home.notice(
                "notification",
                proclamation.message,
                task_id=f"proclamation-{found.task_id}",
                channel=proclamation.channel,
                urgency="high",
            )
        )
    return made


def _outcome(home: Home, found: Result) -> Notice:
    text = {"success": found.summary, "skipped": found.reason}.get(found.status, found.error)
    text = text or found.summary or "completed"
    work = found.original_type or ("conversation" if found.type == "resume" else found.type)
    content = f"{_MARKS[found.status]} {work or found.task_id} — {text}"
    fields: dict[str, Any] = {"task_id": found.task_id, "context": {"status": found.status, "repo": found.repo}}
    origin = found.origin
    if origin.get("message_ts"):
        fields["source_ref"] = {"channel": origin["channel"], "message_ts": origin["message_ts"]}
    thread = origin.get("thread_ts") or origin.get("message_ts")
    if found.notify_channel:
        return home.notice("notification", content, **fields, channel=found.notify_channel)
    if found.status == "success" and thread:
        fields |= {"channel": origin["channel"], "thread_ts": thread, "track_conversation": _conversation(found)}
        return home.notice("thread_reply", content, **fields)
    if origin:
        fields["channel"] = origin["channel"]
    if thread:
        fields["thread_ts"] = thread
    return home.notice("notification", content, **fields)


def _conversation(found: Result) -> dict[str, Any]:
    context = {"general": found.target_general, "session_id": found.session_id, "repo": found.repo}
    if found.workspace:
        context["workspace"] = found.workspace
    return {"reply_context": context, "ttl_seconds": CONVERSATION_SECONDS}


def _question(home: Home, found: Result) -> Notice:
    origin = found.origin
    context = {
        "task_id": found.task_id,
        "general": found.target_general,
        "session_id": found.session_id,
        "repo": found.repo,
        "checkpoint_path": found.checkpoint_path,
    }
    fields: dict[str, Any] = {"channel": origin["channel"]} if origin else {}
    kind = found.kind or ("choose" if found.options else "text")
    expiry = {"expire_seconds": found.expire_seconds} if found.expire_seconds else {}
    return home.notice(
        "human_input_request",
        f"[question] {found.question}",
        task_id=found.task_id,
        context={"checkpoint_path": found.checkpoint_path, "kind": kind, "options": found.options, **expiry},
        reply_context={**context, **origin},
        thread_ts=str(origin.get("thread_ts") or origin.get("message_ts") or ""),
        **fields,
    )
