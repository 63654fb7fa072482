"""The team file: names, numbers, limits, and mistakes that are all named."""

from __future__ import annotations

from pathlib import Path

import pytest

from pabal.apps.ignite.team import Team, read_team
from pabal.errors import InvalidConfig, QueueUnknown
from pabal.policy.policy import Backoff


def team(place: Path, text: str) -> Team:
    path = place / "team.yaml"
    path.write_text(text)
    return read_team(path)


def test_numbered_agents_are_spelt_out_and_known_by_both_spellings(tmp_path: Path) -> None:
    found = team(tmp_path, "agents: {leader: {wake: hook}, ignitian: {count: 3, wake: hook}}")
    assert list(found.agents) == ["leader", "ignitian_1", "ignitian_2", "ignitian_3"]
    assert found.name_of("ignitian-2") == found.name_of("ignitian_2") == "ignitian_2"
    with pytest.raises(QueueUnknown, match="did you mean leader"):
        found.name_of("leadr")
    for sender in ("user", "system", "github_watcher", "queue_monitor", "leader", "ignitian-1"):
        found.sender_of(sender)
    with pytest.raises(QueueUnknown):
        found.sender_of("stranger")


def test_the_limits_become_the_policy_of_every_queue(tmp_path: Path) -> None:
    found = team(
        tmp_path, "agents: {leader: {}}\nretry: {limit: 4, base: 2, cap: 9}\nlimits: {waiting: 7}\nkeep: {done: 2}"
    )
    policy = found.policy
    assert (policy.retry.limit, policy.retry.backoff, policy.retry.initial, policy.retry.max) == (
        5,  # attempts: the first, and four retries
        Backoff.FULL_JITTER,
        2,
        9,
    )
    assert (policy.max_waiting, policy.done_retention) == (7, 2 * 86400)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("agents: {}", "at least one"),
        ("agents: {../x: {wake: hook}}", "agent name"),
        ("agents: {user: {wake: hook}}", "kept for others"),
        ("agents: {leader: {wakes: hook}}", "wakes"),
        ("agents: {leader: {count: -1}}", "count"),
        ("agents: {leader: {wake: exec}}", r"leader\.command or preset: wake: exec needs one"),
        ("agents: {leader: {wake: tmux, line: ''}}", r"leader\.line"),
        ('agents: {leader: {wake: tmux, line: "a\\nb"}}', r"leader\.line"),
        ("agents: {leader: {wake: tmux, pane: -x}}", r"begins with '-'"),
        ("agents: {leader: {wake: webhook}}", r"leader\.url"),
        ("agents: {boss: {}}", "leader is none of the agents"),
        ("agents: {leader: {}}\nlimits: {parallel: 0}", "limits.parallel"),
        ("agents: {leader: {}}\nretry: {base: 9, cap: 3}", r"retry.cap \(3\) is below retry.base"),
        ("agents: [leader]", "agents"),
        ("agents: &a {leader: {}}", "anchors"),
        ("nothing: here", "nothing"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        team(tmp_path, text)


def test_a_team_file_that_is_not_there_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="pabal ignite init"):
        read_team(tmp_path / "team.yaml")
