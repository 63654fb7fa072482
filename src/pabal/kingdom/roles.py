"""The roles by name, each a process: `sentinel`, `envoy`, `king`, `chamberlain`, and `gen-…` for every general."""

from __future__ import annotations

from importlib import import_module

from pabal.errors import InvalidInput, PabalError
from pabal.kingdom.config import ROLES
from pabal.kingdom.home import Home
from pabal.kingdom.journal import FAILED


def run_role(home: Home, name: str) -> None:
    """Be this role until told to stop. What ends it otherwise is told to the journal, for who asks where it is."""
    try:
        _run(home, name)
    except PabalError as exc:
        home.journal.note(FAILED, name, problem=f"{exc.code}: {exc}"[:300])
        raise


def _run(home: Home, name: str) -> None:
    home.prepare()
    if name.startswith("gen-"):
        from pabal.kingdom.general.role import run as lead

        lead(home, name)
    elif name in ROLES:
        import_module(f"pabal.kingdom.{name}.role").run(home)
    else:
        raise InvalidInput(f"a role is one of {', '.join(ROLES)} or gen- and a name; found {name!r:.80}")
