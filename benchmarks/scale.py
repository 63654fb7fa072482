"""How much is measured: all of it, a minute's worth, or just enough to see that every row comes out."""

from typing import NamedTuple


class Scale(NamedTuple):
    rounds: int
    backlog_rounds: int  # where a slice may be one slow call
    slice: float  # seconds per contender and round
    small: int  # the three backlogs
    large: int
    huge: int
    fill_seconds: float  # how long building one backlog may take
    kept: int  # messages published per slice where the backlog is to keep its size
    samples: int  # latencies per kind
    latency_seconds: float  # how long to wait for them
    idle_seconds: float
    processes: int  # that publish at once
    growth_divisor: int  # by which the numbers of `growth` are divided


FULL = Scale(20, 7, 0.15, 1_000, 100_000, 1_000_000, 120.0, 300, 400, 30.0, 5.0, 8, 1)
QUICK = Scale(5, 3, 0.05, 1_000, 5_000, 20_000, 20.0, 100, 40, 5.0, 2.0, 8, 50)
SMOKE = Scale(1, 1, 0.005, 20, 40, 60, 20.0, 5, 3, 1.0, 0.1, 2, 100_000)
