"""The package that users install: its metadata are complete, and its wheel works in an empty environment."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = """
import pabal

print(pabal.__version__)
with pabal.connect("sqlite:jobs.db") as mq:
    mq.queue("jobs").publish({"n": 1})
    pabal.worker(mq.queue("jobs"), lambda delivery: print(delivery.body)).run(wait=0)
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_the_wheel_is_complete_and_works_in_an_empty_environment(tmp_path: Path) -> None:
    built = tmp_path / "dist"
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", built, ROOT, cwd=tmp_path)
    [wheel], [source] = built.glob("*.whl"), built.glob("*.tar.gz")
    assert "warning" not in run(sys.executable, "-m", "twine", "check", "--strict", wheel, source, cwd=tmp_path).lower()
    names = zipfile.ZipFile(wheel).namelist()
    tree = {f"pabal/{path.relative_to(ROOT / 'src' / 'pabal')}" for path in (ROOT / "src" / "pabal").rglob("*.sql")}
    assert tree <= set(names) and "pabal/py.typed" in names
    with tarfile.open(source) as archive:
        inside = archive.getnames()
    assert any(name.endswith("/LICENSE") for name in inside)
    assert not [name for name in inside if "/.venv/" in name or "/.cache/" in name or name.endswith(".db")]

    place = tmp_path / "empty"
    run(sys.executable, "-m", "venv", place, cwd=tmp_path)
    pip = (place / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--constraint", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    said = run(place / "bin" / "python", "-c", PROGRAM, cwd=tmp_path).split("\n")
    assert wheel.name.split("-")[1] == said[0] and said[1] == "{'n': 1}"
    assert said[0] in run(place / "bin" / "pabal", "--version", cwd=tmp_path)
    assert "jobs" in run(place / "bin" / "pabal", "--url", "sqlite:jobs.db", "status", cwd=tmp_path)
