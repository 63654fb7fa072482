"""The Prometheus rules and the dashboard in docs: each rule fires when its cause is made true on a real store."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pabal.connect import connect
from pabal.policy.policy import DeadLetterPolicy, Policy, RetryPolicy
from pabal.queues.metrics import queue_metrics
from pabal.queues.prometheus import prometheus_text
from pabal.queues.queue import Queue
from pabal.runtime.resources import store_metrics
from pabal.store import Receipt
from pabal.testing import ManualClock
from tests.openers import damage_row

DOCS = Path(__file__).parent.parent / "docs"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((DOCS / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
LIMIT = re.compile(r"(?:increase\()?(\w+)(?:\{(\w+)=\"(\w+)\"\})?(?:\[(\w+)\]\))? ([<>]) (\d+)")

PROMTOOL = shutil.which("promtool", path=f"{os.environ['PATH']}:{DOCS.parent / '.cache'}")

Samples = dict[tuple[str, str], float]


def samples(text: str) -> Samples:
    """Return the value of each series, by its name and its labels as text."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name, _, labels = series.partition("{")
            found[name, labels] = float(value)
    return found


def fires(rule: dict[str, Any], before: Samples, after: Samples) -> int:
    """Evaluate a rule of the forms that are used here; return for how many series it fires.

    An increase is that between the two scrapes.
    """
    if absent := re.fullmatch(r"absent\((\w+)\)", rule["expr"]):
        return int(not any(name == absent[1] for name, _ in after))
    form = LIMIT.fullmatch(rule["expr"])
    assert form, f"this test cannot read {rule['expr']}"
    name, label, value, window, sign, limit = form.groups()
    chosen = {
        key: count for key, count in after.items() if key[0] == name and (not label or f'{label}="{value}"' in key[1])
    }
    assert chosen, f"no series {name}"
    if window:
        assert chosen.keys() <= before.keys(), "a series that is not there from the beginning has no increase"
        chosen = {key: count - before[key] for key, count in chosen.items()}
    return sum(count > float(limit) if sign == ">" else count < float(limit) for count in chosen.values())


class Place:
    """A store with a queue that may be harmed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.mq = connect(f"sqlite:{folder}/pabal.db", clock=self.clock)
        self.jobs: Queue = self.mq.queue("jobs")
        self.jobs.publish(1, id="first")

    def scrape(self) -> Samples:
        queues = {
            name: queue_metrics(self.mq.queue(name), self.mq.store.counters(name), self.clock.now())
            for name in self.mq.queues()
        }
        return samples(prometheus_text({"store": store_metrics(self.mq.store), "queues": queues}))


def wait_long(place: Place) -> None:
    place.clock.advance(301)


def work_long(place: Place) -> None:
    place.jobs.lease(visibility=7200)
    place.clock.advance(3601)


def die(place: Place) -> None:
    place.jobs.lease()[0].bury("no")


def drop(place: Place) -> None:
    place.jobs.configure(Policy(retry=RetryPolicy(limit=1), dead_letters=DeadLetterPolicy(enabled=False)))
    place.jobs.lease()[0].nack()


def let_the_lease_run_out(place: Place) -> None:
    place.jobs.lease(visibility=1)
    place.clock.advance(2)
    place.jobs.sweep()


def settle_late(place: Place) -> None:
    place.jobs.lease()
    with pytest.raises(Exception, match="no longer held"):
        place.jobs.ack(Receipt("jobs", "first", "f" * 16))


def corrupt(place: Place) -> None:
    damage_row(place.folder, "jobs", "first")
    assert place.jobs.lease() == []


def pause(place: Place) -> None:
    place.jobs.pause()


def lose_the_ballast(place: Place) -> None:
    os.remove(place.folder / "pabal.db.ballast")


CAUSES: dict[str, Callable[[Place], None]] = {
    "PabalOldestReady": wait_long,
    "PabalOldestInflight": work_long,
    "PabalDeadLetters": die,
    "PabalDropped": drop,
    "PabalLeasesExpire": let_the_lease_run_out,
    "PabalStaleReceipts": settle_late,
    "PabalCorrupt": corrupt,
    "PabalPaused": pause,
    "PabalBallastMissing": lose_the_ballast,
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("name", CAUSES)
def test_a_rule_fires_when_its_cause_is_there_and_not_before(name: str, place: Place) -> None:
    with place.mq:
        before = place.scrape()
        quiet = [alert for alert, rule in RULES.items() if alert != "PabalDiskFillsUp" and fires(rule, before, before)]
        assert quiet == []
        CAUSES[name](place)
        assert fires(RULES[name], before, place.scrape())


def test_a_rule_fires_for_a_full_disk_and_for_no_figures(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.mq:
        before = place.scrape()
        monkeypatch.setattr("pabal.runtime.resources.free_bytes", lambda folder: 1 << 20)
        assert fires(RULES["PabalDiskFillsUp"], before, place.scrape())
    assert fires(RULES["PabalNoFigures"], before, {})
    assert RULES.keys() == CAUSES.keys() | {"PabalDiskFillsUp", "PabalNoFigures"}


def test_prometheus_evaluates_the_rules_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if PROMTOOL is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have promtool: run scripts/system-packages")
        pytest.skip("needs promtool: run scripts/system-packages; the other tests evaluate the rules themselves")
    subprocess.run([PROMTOOL, "check", "rules", str(DOCS / "alerts.yml")], check=True)
    cases = []
    for number, (name, cause) in enumerate([*CAUSES.items(), ("PabalDiskFillsUp", None), ("PabalNoFigures", None)]):
        (tmp_path / str(number)).mkdir()
        place = Place(tmp_path / str(number))
        with place.mq:
            before = place.scrape()
            if cause is not None:
                cause(place)
            if name == "PabalDiskFillsUp":
                monkeypatch.setattr("pabal.runtime.resources.free_bytes", lambda folder: 1 << 20)
            after = place.scrape() if name != "PabalNoFigures" else {}
            monkeypatch.undo()
        cases.append(unit_test(name, before, after))
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": [], "tests": cases}))
    ran = subprocess.run([PROMTOOL, "test", "rules", str(tmp_path / "tests.yml")], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def unit_test(name: str, before: Samples, after: Samples) -> dict[str, Any]:
    """Return a test for promtool: the scrape before for 30 minutes, then that after it for 10."""
    rule = RULES[name]
    series = [
        {"series": key[0] + (f"{{{key[1]}" if key[1] else ""), "values": f"{before[key]}x30 {after[key]}x10"}
        for key in before
        if key in after
    ]
    fired, quiet = fires(rule, before, after), fires(rule, before, before)
    assert fired, name

    def expect(at: str, many: int) -> dict[str, Any]:
        samples = [{"labels": "{}", "value": many}] if many else []
        return {"expr": f"count({rule['expr']})", "eval_time": at, "exp_samples": samples}

    first = [] if name == "PabalNoFigures" else [expect("25m", quiet)]
    return {"interval": "1m", "input_series": series, "promql_expr_test": [*first, expect("35m", fired)]}


def test_the_dashboard_asks_for_series_that_exist(place: Place) -> None:
    with place.mq:
        known = place.scrape()
    dashboard = json.loads((DOCS / "dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [each["query"] for each in dashboard["templating"]["list"]]
    names = {name for expression in asked for name in re.findall(r"pabal_\w+", expression)}
    assert len(names) > 12 and names <= {name for name, _ in known}
    for expression in asked:
        for label in re.findall(r"by \((\w+)\)", expression):
            [name] = set(re.findall(r"pabal_\w+", expression))
            assert any(f'{label}="' in labels for series, labels in known if series == name), expression
