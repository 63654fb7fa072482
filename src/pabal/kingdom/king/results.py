"""Results become notices: what came of a task, a question to people, a proclamation; then the event is archived.

Acknowledged together with its notices, a result is told once whatever is killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pabal.delivery import Delivery
from pabal.errors import InvalidInput
from pabal.kingdom.documents import Notice, Result, Task, document_of, read, result_of
from pabal.kingdom.home import Home
from pabal.kingdom.king.archive import Archive
from pabal.kingdom.layout import MESSAGES, RESULTS, TASKS
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

    def step(self) -> None:
        found = self._home.queue(RESULTS).lease(BATCH, self._home.config.lease_seconds)
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
        settlements = [
            Settlement(
                delivery.receipt, queue.done([self._home.draft(notice) for notice in notices(self._home, found)])
            )
            for delivery, found in read_ones
        ]
        outcomes = self._home.store.settle(settlements) if settlements else []
        done = [found for (_, found), outcome in zip(read_ones, outcomes, strict=True) if outcome is Outcome.APPLIED]
        for found in done:
            facts = {"task": found.task_id, "general": found.target_general, "status": found.status}
            self._home.journal.note(_KINDS[found.status], "king", **facts, reason=found.error or found.reason)
        self._archive.complete({found.event_id: "" for found in done if found.event_id})

    def _completed(self, found: Result) -> Result:
        """Add what the task says, where somebody else than a general wrote the result."""
        if found.event_id:
            return found
        entry = self._home.queue(TASKS).find(found.task_id)
        if entry is None or entry.message is None:
            return found
        return result_of(read(Task, entry.message.body), document_of(found))

    def _fail_unreadable(self) -> None:
        """Tell of a result that could not be read for a minute, once, and let its event go."""
        now = self._home.clock.now()
        for entry in self._home.queue(RESULTS).browse(State.CORRUPT):
            at = entry.failure.at if entry.failure else 0.0
            task = entry.id.partition("~")[0]
            if now - at < UNREADABLE_SECONDS or not task.startswith("task-"):
                continue
            reason = f"its result cannot be read: {entry.failure.reason if entry.failure else 'damaged'}"[:500]
            known = self._home.queue(TASKS).find(task)
            if known is None or known.message is None:
                continue
            result = result_of(
                read(Task, known.message.body), {"status": "failed", "summary": "unreadable result", "error": reason}
            )
            drafts = [self._home.draft(each, key=f"unreadable-{task}") for each in notices(self._home, result)]
            if not self._home.queue(MESSAGES).publish_many(drafts)[0].duplicate:
                self._home.journal.note("task.failed", "king", task=task, reason=reason)
                self._archive.complete({result.event_id: ""})


def notices(home: Home, found: Result) -> list[Notice]:
    """Return what people are told of a result."""
    if found.status == "needs_human":
        return [_question(home, found)]
    told = [_outcome(home, found)]
    if found.proclamation is not None:
        said = found.proclamation
        told.append(
            home.notice(
                "notification",
                said.message,
                task_id=f"proclamation-{found.task_id}",
                channel=said.channel,
                urgency="high",
            )
        )
    return told


def _outcome(home: Home, found: Result) -> Notice:
    text = {"success": found.summary, "skipped": found.reason}.get(found.status, found.error) or found.summary
    content = f"{_MARKS[found.status]} {found.type or found.task_id} — {text}"
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
