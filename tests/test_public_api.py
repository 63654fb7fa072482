"""The public names are exact, sorted and all there."""

import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest

import pabal


def test_all_is_sorted_and_complete() -> None:
    assert pabal.__all__ == sorted(pabal.__all__, key=lambda name: (name.islower(), name))
    public = {
        name
        for name, value in vars(pabal).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert public == set(pabal.__all__)


def test_every_public_name_is_documented() -> None:
    for name in pabal.__all__:
        assert getattr(pabal, name).__doc__, name


def test_importing_pabal_loads_no_store() -> None:
    code = "import sys, pabal; print([m for m in sys.modules if m.startswith('pabal.stores') or m == 'apsw'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("app", ["", "chat", "ignite", "kingdom"])
def test_the_error_tree_in_the_docstring_is_the_real_one(app: str) -> None:
    from pabal import errors

    module = import_module(f"pabal.apps.{app}.errors" if app else "pabal.errors")
    drawn = set((module.__doc__ or "").replace("├", " ").replace("└", " ").replace(":", " ").split())
    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    classes = [value for value in own if isinstance(value, type) and issubclass(value, Exception)]
    assert len(classes) > (0 if app else 20)
    for error in classes:
        assert error.__name__ in drawn, error
        assert issubclass(error, errors.PabalError)
        if error not in (errors.DecodeError, errors.Refused):  # the one needs its bytes, the other says another's code
            assert error("x").code == error.__name__


def test_asserts_of_the_suites_are_explained_whatever_of_them_is_imported_first(tmp_path: Path) -> None:
    test = tmp_path / "test_imports.py"
    test.write_text(
        "from pabal.testing import store_place, topic_place\n"
        "from pabal.testing import store_suite, topic_suite\n\n"
        "def test_loaders() -> None:\n"
        "    for module in (store_place, topic_place, store_suite, topic_suite):\n"
        "        assert type(module.__loader__).__name__ == 'AssertionRewritingHook', module\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(test)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_the_version_and_what_objects_say_of_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import version

    monkeypatch.chdir(tmp_path)

    assert pabal.__version__ == version("pabal")
    with pytest.raises(AttributeError, match="novel"):
        _ = pabal.novel
    with pabal.connect("sqlite:jobs.db", consumer="kim") as mq:
        assert repr(mq) == "<Connection 'sqlite:jobs.db' as kim>"
        assert repr(mq.queue("jobs")) == "<Queue jobs>"
    with pabal.connect_topics("sqlite:topics.db") as topics:
        assert "topics.db" in repr(topics) and repr(topics.topic("a")) == "<Topic a>"


def test_every_keyword_is_shown_by_help() -> None:
    import inspect

    from pabal import aio

    for kind in (pabal.Queue, aio.Queue):
        for name in ("publish", "publish_many", "draft", "lease", "consume"):
            kinds = {each.kind for each in inspect.signature(getattr(kind, name)).parameters.values()}
            assert inspect.Parameter.VAR_KEYWORD not in kinds, name
    keywords = set(inspect.signature(pabal.Queue.publish).parameters) - {"self", "body"}
    described = pabal.Queue.publish.__doc__ or ""
    assert all(f"`{keyword}`" in described for keyword in keywords)
