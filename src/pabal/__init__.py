"""Durable message passing for teams of processes and agents: embedded first, scaled out by changing a URL."""

from pabal.clock import Clock, SystemClock
from pabal.codec import Codec
from pabal.connect import Connection, connect
from pabal.delivery import Delivery
from pabal.errors import (
    DecodeError,
    InvalidInput,
    LeaseLost,
    PabalError,
    QueueFull,
    QueueUnknown,
    StoreError,
    StoreFailed,
    StoreFull,
    Uncertain,
)
from pabal.message import Message
from pabal.policy import Backoff, DeadLetterPolicy, Policy, RetryPolicy
from pabal.queue import Queue
from pabal.store import Draft, Entry, Failure, Published, Receipt, State, Store
from pabal.worker import Worker, worker

__all__ = [
    "Backoff",
    "Clock",
    "Codec",
    "Connection",
    "DeadLetterPolicy",
    "DecodeError",
    "Delivery",
    "Draft",
    "Entry",
    "Failure",
    "InvalidInput",
    "LeaseLost",
    "Message",
    "PabalError",
    "Policy",
    "Published",
    "Queue",
    "QueueFull",
    "QueueUnknown",
    "Receipt",
    "RetryPolicy",
    "State",
    "Store",
    "StoreError",
    "StoreFailed",
    "StoreFull",
    "SystemClock",
    "Uncertain",
    "Worker",
    "connect",
    "worker",
]
