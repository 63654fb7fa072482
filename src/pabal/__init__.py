"""Durable message passing for teams of processes and agents: embedded first, scaled out by changing a URL."""

from pabal.appending import Topic
from pabal.clock import Clock, SystemClock
from pabal.codec import Codec
from pabal.connect import Connection, connect
from pabal.connect_topics import TopicConnection, connect_topics
from pabal.consuming import Consumer, consumer
from pabal.delivery import Delivery
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
    TopicUnknown,
    Uncertain,
)
from pabal.handling import Received, Refusal
from pabal.message import Message
from pabal.policy import Backoff, DeadLetterPolicy, Policy, RetryPolicy
from pabal.queue import Queue
from pabal.store import Draft, Entry, Failure, Published, Receipt, State, Store
from pabal.topic import NewRecord, Position, Record
from pabal.worker import Worker, worker

__all__ = [
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
    "State",
    "Store",
    "StoreError",
    "StoreFailed",
    "StoreFull",
    "SystemClock",
    "Topic",
    "TopicConnection",
    "TopicUnknown",
    "Uncertain",
    "Worker",
    "connect",
    "connect_topics",
    "consumer",
    "worker",
]
