"""Ids sort by time and rise strictly; tokens are fresh."""

import uuid

from pabal.clock import SystemClock
from pabal.ids import IdMaker, UlidMaker, new_token, ulid_milliseconds
from pabal.testing import ManualClock


def test_ids_are_uuids_of_version_7() -> None:
    made = uuid.UUID(IdMaker(SystemClock())())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)


def test_ids_rise_within_a_millisecond() -> None:
    make = IdMaker(ManualClock())
    made = [make() for _ in range(10_000)]
    assert made == sorted(set(made))


def test_ids_made_together_are_like_those_made_one_by_one() -> None:
    make = IdMaker(ManualClock())
    made = [*make.many(1000), make(), *make.many(1), *make.many(0), *make.many(257)]
    assert made == sorted(set(made)) and len(made) == 1259
    assert {(uuid.UUID(id).version, uuid.UUID(id).variant, len(id)) for id in made} == {(7, uuid.RFC_4122, 36)}
    assert len({id[-8:] for id in made}) > 1250  # the noise is each one's own


def test_ids_rise_when_the_wall_clock_steps_back() -> None:
    clock = ManualClock()
    make = IdMaker(clock)
    first = make()
    clock.step_wall(-3600)
    assert make() > first


def test_ids_carry_the_time() -> None:
    clock = ManualClock()
    stamp = int(IdMaker(clock)().replace("-", "")[:12], 16)
    assert stamp == int(clock.now() * 1000)


def test_two_makers_never_agree() -> None:
    clock = ManualClock()
    assert len({IdMaker(clock)() for _ in range(1000)}) == 1000


def test_ulids_have_26_letters_and_carry_the_time() -> None:
    clock = ManualClock()
    made = UlidMaker(clock)()
    assert len(made) == 26 and set(made) <= set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
    assert ulid_milliseconds(made) == int(clock.now() * 1000)
    assert ulid_milliseconds("01ARZ3NDEKTSV4RRFFQ69G5FAV") == 1469922850259


def test_ulids_rise_within_a_millisecond_and_when_the_wall_clock_steps_back() -> None:
    clock = ManualClock()
    make = UlidMaker(clock)
    made = [make() for _ in range(10_000)]
    clock.step_wall(-3600)
    made.append(make())
    assert made == sorted(set(made))


def test_a_ulid_is_above_one_of_a_clock_that_is_ahead_and_the_next_one_is_not_infected() -> None:
    here, ahead = ManualClock(), ManualClock()
    ahead.step_wall(3600)
    make, theirs = UlidMaker(here), UlidMaker(ahead)()
    above = make(above=theirs)
    assert theirs < above < make(above=above)
    assert make() < theirs
    assert make(above="01ARZ3NDEKZZZZZZZZZZZZZZZZ") > "01ARZ3NDEKZZZZZZZZZZZZZZZZ"


def test_tokens_are_fresh_and_fit_a_file_name() -> None:
    tokens = {new_token() for _ in range(1000)}
    assert len(tokens) == 1000
    assert all(len(token) == 16 and token.isalnum() and token.islower() or token.isdigit() for token in tokens)


def test_makers_that_count_on_from_one_ulid_never_meet() -> None:
    clock = ManualClock()
    first = UlidMaker(clock)()
    made = [UlidMaker(clock)(above=first) for _ in range(1000)]
    assert len(set(made)) == 1000 and min(made) > first
