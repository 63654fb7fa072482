"""`pabal schedule`: add, list, run, remove."""

from tests.cli.command import Pabal


def test_a_schedule_from_the_command_line(any_pabal: Pabal) -> None:
    pabal = any_pabal
    assert pabal("schedule", "list").code == 3  # no store yet, and none is made
    made = pabal.ok("schedule", "add", "morning", "--queue", "reports", "--cron", "0 9 * * *", "--body", '{"a": 1}')
    assert made.startswith("morning: next ")
    pabal.ok("schedule", "add", "ping", "--queue", "checks", "--every", "5m", "--catch-up", "skip", "--type", "p")
    found = pabal("schedule", "list", "--json").documents
    assert [(each["name"], each["cron"], each["every"], each["body"], each["catch_up"]) for each in found] == [
        ("morning", "0 9 * * *", 0.0, {"a": 1}, "once"),
        ("ping", "", 300.0, None, "skip"),
    ]
    assert "every 5m" in pabal.ok("schedule", "list")
    id = pabal.ok("schedule", "run", "morning")
    assert f"id       {id}" in pabal.ok("consume", "reports", "--ack")
    assert pabal.ok("schedule", "remove", "ping") == "removed ping"
    assert pabal("schedule", "remove", "ping").code == 3 and pabal("schedule", "run", "ping").code == 3
    assert pabal("schedule", "add", "x", "--queue", "q", "--cron", "9").code == 2
