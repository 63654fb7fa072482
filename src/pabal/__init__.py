"""Durable message passing for teams of processes and agents: embedded first, scaled out by changing a URL."""

from pabal.app import App
from pabal.clock import Clock, SystemClock
from pabal.codec import Codec
from pabal.connect import Connection, TopicConnection, connect, connect_topics
from pabal.errors import (
    DecodeError,
    Fenced,
    InvalidInput,
    LeaseLost,
    Outage,
    PabalError,
    QueueFull,
    QueueUnknown,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreMissing,
    TopicUnknown,
    Uncertain,
    ValidationFailed,
)
from pabal.message import Message
from pabal.policy.policy import Backoff, DeadLetterPolicy, Policy, RetryPolicy
from pabal.queues.delivery import Delivery
from pabal.queues.queue import Queue
from pabal.queues.schedules import Schedule
from pabal.queues.worker import Worker, worker
from pabal.store import Draft, Entry, Failure, Published, Receipt, State, Store
from pabal.topic_store import NewRecord, Position, Record
from pabal.topics.attempts import Received, Refusal
from pabal.topics.consumer import Consumer, consumer
from pabal.topics.topic import Topic

__all__ = [
    "App",
    "Backoff",
    "Clock",
    "Codec",
    "Connection",
    "Consumer",
    "DeadLetterPolicy",
    "DecodeError",
    "Delivery",
    "Draft",
    "Entry",
    "Failure",
    "Fenced",
    "InvalidInput",
    "LeaseLost",
    "Message",
    "NewRecord",
    "Outage",
    "PabalError",
    "Policy",
    "Position",
    "Published",
    "Queue",
    "QueueFull",
    "QueueUnknown",
    "Receipt",
    "Received",
    "Record",
    "Refusal",
    "RetryPolicy",
    "Schedule",
    "State",
    "Store",
    "StoreError",
    "StoreFailed",
    "StoreFull",
    "StoreMissing",
    "SystemClock",
    "Topic",
    "TopicConnection",
    "TopicUnknown",
    "Uncertain",
    "ValidationFailed",
    "Worker",
    "connect",
    "connect_topics",
    "consumer",
    "worker",
]


def __getattr__(name: str) -> str:
    """Return `__version__`; the metadata of packages are slow to import, and seldom needed."""
    if name != "__version__":
        raise AttributeError(f"module 'pabal' has no attribute {name!r}")
    from importlib.metadata import version

    return version("pabal")
