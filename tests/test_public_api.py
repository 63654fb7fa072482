"""The public names are exact, sorted and all there."""

import subprocess
import sys
import types
from pathlib import Path

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


def test_the_error_tree_in_the_docstring_is_the_real_one() -> None:
    from pabal import errors

    drawn = (
        set(errors.__doc__.replace("├", " ").replace("└", " ").replace(":", " ").split()) if errors.__doc__ else set()
    )
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(classes) > 20
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
