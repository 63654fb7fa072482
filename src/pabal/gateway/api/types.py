"""What requests over HTTP take, and what they are answered with. The OpenAPI document is made from these types."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import UNSET, Meta, UnsetType

from pabal.queues.documents import QueueFigures
from pabal.topics.documents import DeadStatus, TopicSummary

MOST = 1000  # messages or receipts in one request
WAIT = 50.0  # seconds of a long poll: many proxies end a request after 60

StateName = Literal["ready", "delayed", "inflight", "dead", "done", "corrupt"]
Removable = Literal["ready", "delayed", "dead", "done", "corrupt"]
Count = Annotated[int, Meta(ge=1, le=MOST)]
Instant = Annotated[datetime, Meta(tz=True)]  # without a zone it would be one by the zone of the gateway
Ids = Annotated[list[str], Meta(min_length=1, max_length=MOST)]


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    """Refuses what it does not know: a mistyped name is a mistake."""


class NewMessage(_Given):
    """A message to publish. Only the body is needed; bytes are base64 text with `body_encoding`."""

    body: Any
    body_encoding: Literal["base64"] | None = None
    id: str | None = None
    type: str | None = None
    version: int | None = None
    sender: str | None = None
    target: str | None = None
    attributes: dict[str, Any] | None = None
    headers: dict[str, str] | None = None
    priority: int | Literal["critical", "high", "normal", "low"] | None = None
    group: str | None = None
    dedup_key: str | None = None
    thread_id: str | None = None
    trace_id: str | None = None
    reply_to: str | None = None
    ttl: float | None = None
    delay: float | None = None
    at: Instant | None = None
    unique: str | None = None


class NewMessages(_Given):
    """Messages that are published in one commit."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=MOST)]


class PublishedMessage(TypedDict):
    """The id of a message; for a duplicate that of the first one. `dead`: the body does not fit the queue's schema."""

    id: str
    duplicate: bool
    dead: bool


class PublishedMessages(TypedDict):
    messages: list[PublishedMessage]


class LeaseTerms(_Given):
    """How many messages to take, how long to wait for the first, and how long they belong to the caller (seconds)."""

    limit: Count = 1
    wait: Annotated[float, Meta(ge=0, le=WAIT)] = 0.0
    visibility: float | None = None


class AttemptOut(TypedDict):
    """Why an attempt failed, and whose it was."""

    code: str
    reason: str
    at: str | None
    attempt: int
    consumer: str


class FailureOut(AttemptOut):
    """Why the last attempt failed, or why a message is dead; `before` has the attempts before it, the oldest first.

    The last ten of those are kept, since the message was published or redriven, and 300 characters of their reasons.
    """

    before: list[AttemptOut]


class MessageFields(TypedDict):
    """What is fixed at publish. All is null if the message itself is no longer stored."""

    queue: str
    id: str
    attempt: int
    failure: FailureOut | None
    body: Any
    body_encoding: Literal["base64"] | None
    type: str | None
    version: int | None
    sender: str | None
    target: str | None
    attributes: dict[str, Any] | None
    headers: dict[str, str] | None
    priority: int | None
    group: str | None
    dedup_key: str | None
    unique: str | None
    thread_id: str | None
    trace_id: str | None
    reply_to: str | None
    created_at: str | None
    expires_at: str | None


class LeasedMessage(MessageFields):
    """A message that belongs to the caller until it settles it with this receipt, or the visibility timeout ends."""

    receipt: str


class LeasedMessages(TypedDict):
    messages: list[LeasedMessage]


class StoredMessage(MessageFields):
    """A message as it lies in its queue. `data` is base64 of what could not be read.

    `body_bytes` is the size of the body as text. A body that is larger than asked for is null, with its beginning in
    `body_text`.
    """

    state: StateName
    due_at: str | None
    data: str | None
    body_bytes: int
    body_text: str | None
    cursor: str


class MessagePage(TypedDict):
    """Messages of one state. `next` is what to give as `after` for those that follow, or null at the end."""

    messages: list[StoredMessage]
    next: str | None


class Look(_Given):
    """Which messages to list. `search` is text in the id, type, body, headers, attributes or failure.

    A body that is text with JSON in it is searched as it is, and with its escapes decoded.
    """

    state: StateName = "ready"
    search: str = ""
    after: str = ""
    limit: Count = 50


class LookForReasons(_Given):
    """Where to go on: the `next` of the answer before."""

    after: str = ""


class Reason(TypedDict):
    """Why messages are dead, and how many of them; a reason is cut after 500 characters."""

    code: str
    reason: str
    messages: int


class Reasons(TypedDict):
    """The reasons of a slice of the dead messages, the most frequent first. `next` is null at the end."""

    reasons: list[Reason]
    next: str | None


class LookAtOne(_Given):
    """`most`: the largest body, in bytes, that is answered whole."""

    most: Annotated[int, Meta(ge=0)] = 1 << 20


class Receipts(_Given):
    """The receipts of leases, to be settled together."""

    receipts: Ids


class Failed(_Given):
    """The receipts of messages that failed. Without a delay the policy of the queue decides when they come back."""

    receipts: Ids
    reason: str = ""
    delay: float | None = None


class Extension(_Given):
    """Leases that end so many seconds from now."""

    receipts: Ids
    seconds: float


class Settled(TypedDict):
    """How many messages were settled or extended: all. If some receipts are stale, the answer is an error."""

    settled: int


class Selection(_Given):
    """Some messages of one state: those with these ids, or all whose text fits `search`.

    A request acts on a slice; `after` and `before` are the `next` and `before` of the answer before. What came, or
    died, after the time `before` is left alone; by default it is now. With `dry_run` they are only counted.
    """

    ids: Ids | UnsetType = UNSET
    search: str = ""
    after: str = ""
    before: Instant | None = None
    dry_run: bool = False


class Redrive(Selection, kw_only=True):
    """Dead messages to make ready again, in their own queue or in the queue `to`, at `rate` messages a second.

    A request with a rate does what fits into about two seconds. To go on with `ids`, give them all again with `after`.
    """

    to: str = ""
    rate: Annotated[float, Meta(ge=0.1, le=10_000)] | None = None


class SendBack(Selection, kw_only=True):
    """Ready messages that their policy moved to this dead-letter queue, to send back to the queue that they came from.

    `to` chooses those of one queue. It may be left out only with `dry_run`.
    """

    to: str = ""


class Removal(Selection, kw_only=True):
    """Messages to remove for good."""

    state: Removable


class Acted(TypedDict):
    """The ids of the messages that were changed, or would be. `next` is null if there are no more to look at."""

    ids: list[str]
    next: str | None
    before: str


class RedriveAnswer(Acted):
    """`kept` says for each message that was chosen and is not ready why it is not."""

    kept: dict[str, str]


class SentBack(RedriveAnswer):
    """`sources` counts the chosen messages by the queue that they were moved from."""

    sources: dict[str, int]


class Cancelled(TypedDict):
    """The ids of the messages that were cancelled."""

    ids: list[str]


class Cancellation(_Given):
    """Waiting messages that nobody shall get; with `inflight` also those that a consumer holds."""

    ids: Ids
    inflight: bool = False


class Forced(_Given):
    """With `force` a queue is deleted although it has messages."""

    force: bool = False


class Removed(TypedDict):
    """How many messages were removed."""

    removed: int


class Queues(TypedDict):
    queues: list[QueueFigures]


class QueueOut(QueueFigures):
    """A queue with its policy, in the names of policy documents; null, with a `fault`, if nobody can read it.

    `at` is the time of the gateway.
    """

    policy: dict[str, Any] | None
    at: str


class Created(TypedDict):
    """Whether the queue was not there before."""

    created: bool


class HeldMessages(TypedDict):
    queue: str
    messages: int
    since: str | None


class ConsumerOut(TypedDict):
    """A consumer of the last hour, and what it holds."""

    consumer: str | None
    host: str | None
    pid: int | None
    since: str | None
    seen: str | None
    holds: list[HeldMessages]


class Consumers(TypedDict):
    consumers: list[ConsumerOut]


class ScheduleOut(TypedDict):
    """A message that comes again and again, and when it comes next."""

    name: str
    queue: str
    cron: str | None
    every: float | None
    timezone: str | None
    catch_up: str
    type: str | None
    body: Any
    next: str | None


class Schedules(TypedDict):
    schedules: list[ScheduleOut]


class TopicList(TypedDict):
    topics: list[TopicSummary]


class LookAtRecords(_Given):
    """Which records to list: from an offset or a time on, or the `newest`. Else from the oldest that is left.

    `after` is the `next` of another answer, `before` its `previous`. Without a partition, those of all come by time.
    """

    partition: Annotated[int, Meta(ge=0)] | None = None
    offset: Annotated[int, Meta(ge=0, lt=1 << 62)] | None = None
    at: Instant | None = None
    newest: bool = False
    after: str = ""
    before: str = ""
    limit: Count = 50


class RecordOut(TypedDict):
    """A record. `fault` says what is wrong with a damaged one.

    `body_bytes` is the size of the body as text. A body that is larger than asked for is null, with its beginning in
    `body_text`.
    """

    topic: str
    partition: int
    offset: int
    at: str | None
    key: str | None
    body: Any
    body_encoding: Literal["base64"] | None
    headers: dict[str, str]
    fault: str | None
    body_bytes: int
    body_text: str | None


class RecordPage(TypedDict):
    """Records, the oldest first. `next` leads to newer ones and `previous` to older ones; null if there are none."""

    records: list[RecordOut]
    previous: str | None
    next: str | None


class LookAtDead(_Given):
    """`after` is the `next` of another answer."""

    after: str = ""
    limit: Count = 50


class DeadRecordOut(RecordOut):
    """A record of the dead-letter topic, with why and for which group it is dead."""

    dead: DeadStatus


class DeadRecordPage(TypedDict):
    """Dead records that were not replayed yet, the oldest first."""

    records: list[DeadRecordOut]
    next: str | None


class Replay(_Given):
    """A slice of the dead records: those up to `until`, of another answer, or all that are dead now.

    With `dry_run` they are only counted.
    """

    until: str = ""
    dry_run: bool = False


class Replayed(TypedDict):
    """How many records were appended again, and how many are left before `until`: go on while there are some.

    Records of which only the note is left cannot be replayed; they are passed over.
    """

    replayed: int
    left: int
    until: str


class PlaceOut(TypedDict):
    """A team or a kingdom beside the store, and how much of it waits for a person; `fault` says why it is not read."""

    place: str
    source: str
    waiting: int
    fault: str | None


class NeedOut(TypedDict):
    """Something that waits for a person. A question takes one of its `options`, or any text if there are none."""

    place: str
    source: str
    kind: str
    id: str
    sender: str
    text: str
    since: str
    expires_at: str | None
    urgent: bool
    options: list[str]
    body: str
    command: str


class Needs(TypedDict):
    """What waits for a person, urgent ones first. `waiting` counts also messages that are not listed."""

    places: list[PlaceOut]
    waiting: int
    needs: list[NeedOut]


class People(TypedDict):
    """What the navigation and the overview show of it."""

    places: list[PlaceOut]
    waiting: int
    first: list[NeedOut]


class NeedAnswer(_Given):
    """The answer to a question, or a reply to mail. With keys the responder is the name of the key."""

    place: str
    id: str
    text: str
    responder: str | None = None


class NeedAnswered(TypedDict):
    """The answer that counts, in the words of the question."""

    answer: str
    responder: str


class Reported(TypedDict):
    """A team or a kingdom, as its command `status --json` prints it; null, with a `fault`, if it cannot be read."""

    place: str
    fault: str | None
    report: dict[str, Any] | None


class Teams(TypedDict):
    teams: list[Reported]


class Kingdoms(TypedDict):
    kingdoms: list[Reported]


class ErrorOut(TypedDict):
    """Why a request was refused. `receipts` are those that are stale, if that is the reason."""

    code: str
    message: str
    receipts: list[str]


class Refusal(TypedDict):
    """The answer to every request that is refused or fails."""

    error: ErrorOut
