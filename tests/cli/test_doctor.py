"""`pabal doctor`: says what it found, mends it if asked, and how much is left."""

import os
from pathlib import Path

from tests.cli.command import Pabal


def test_a_healthy_store_is_well(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1")
    assert any_pabal.ok("doctor").splitlines()[0] == "all is well"
    assert any_pabal("doctor", "--json") == (0, "", "")


def test_what_is_left_behind_is_found_and_mended(tmp_path: Path) -> None:
    pabal = Pabal(f"file:{tmp_path / 'spool'}", tmp_path)
    pabal.ok("publish", "jobs", "1")
    left = tmp_path / "spool" / "jobs" / "tmp" / "left-behind.json"
    left.write_text("{}")
    os.utime(left, (1e9, 1e9))
    found = pabal("doctor", "--json")
    assert found.code == 1
    assert list(found.documents[0]) == ["where", "problem", "remedy", "repaired"]
    assert "pabal doctor --repair" in pabal("doctor").out
    assert left.exists(), "looking mends nothing"
    mended = pabal("doctor", "--repair")
    assert mended.code == 0 and "mended: " in mended.out
    assert not left.exists()
    assert pabal.ok("doctor").startswith("all is well")
    assert pabal.counts() == {"ready": 1}
