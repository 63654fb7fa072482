"""Names of queues, consumers and messages."""

import pytest

from pabal.errors import InvalidName
from pabal.names import check_id, check_name, did_you_mean

GOOD = ["a", "jobs", "Jobs-2_x", "tenant.jobs.in", "9lives", "_x", "a" * 200]
BAD = [
    "",
    ".",
    "..",
    "../x",
    "/etc/x",
    "a/b",
    "-a",
    ".a",
    "a.",
    "a..b",
    "a\n",
    "a\tb",
    "a\0b",
    "a b",
    "é",
    "\ud800",
    "a~b",
]


@pytest.mark.parametrize("name", GOOD)
def test_good_names_pass(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", [*BAD, "a" * 201, "a:b"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="1-200 of letters"):
        check_name(name)


@pytest.mark.parametrize("id", [*GOOD[:-1], "evt-github-123-2026-02-07T10:00:00Z", "a" * 128])
def test_good_ids_pass(id: str) -> None:
    assert check_id(id) == id


@pytest.mark.parametrize("id", [*BAD, "a" * 129])
def test_bad_ids_are_refused(id: str) -> None:
    with pytest.raises(InvalidName, match="1-128 of letters"):
        check_id(id)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidName):
        check_id(7)  # type: ignore[arg-type]  # a caller without a type checker


def test_a_misspelt_name_brings_the_known_name_that_is_closest() -> None:
    assert did_you_mean("telemetrie", ["jobs", "telemetry"]) == "did you mean telemetry?"
    assert did_you_mean("x" * 10_000, ["jobs", "telemetry"]) == ""
    assert did_you_mean("jobs", []) == ""
