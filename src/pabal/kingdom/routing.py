"""Which general takes an event: the most specific claim, `github.pr.assigned` before `github.pr.*` before `*`.

Where two manifests claim one pattern, the first by file name keeps it and the other's claim is a problem that is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pabal.errors import NameTaken
from pabal.kingdom.manifests import FOLDER, Loaded, Manifest, load, signature


class Table:
    """Patterns and the generals that claim them."""

    def __init__(self, loaded: Loaded, engine: str = "") -> None:
        self.problems = list(loaded.problems)
        self._claims: dict[str, Manifest] = {}
        self.generals = {manifest.name: manifest for manifest in loaded.manifests}
        for manifest in loaded.manifests:
            if engine and not manifest.command and not manifest.engine_of(engine):
                supported = ", ".join(manifest.supported_engines)
                self.problems.append(f"{manifest.name} supports {supported}, not {engine}: it gets no events")
                continue
            self._claim(manifest)

    def find(self, type: str) -> Manifest | None:
        """Return the general that takes events of this type."""
        if type in self._claims:
            return self._claims[type]
        parts = type.split(".")
        wild = (".".join([*parts[:size], "*"]) for size in range(len(parts) - 1, -1, -1))
        return next((self._claims[pattern] for pattern in wild if pattern in self._claims), None)

    def _claim(self, manifest: Manifest) -> None:
        for pattern in manifest.subscribes:
            owner = self._claims.setdefault(pattern, manifest)
            if owner is not manifest:
                self.problems.append(f"{pattern} is claimed by {owner.name}; {manifest.name} does not get it")


class Routing:
    """The table of a kingdom, read again when a manifest changed."""

    def __init__(self, root: Path, engine: str = "") -> None:
        self._folder = root / FOLDER
        self._engine = engine
        self._signature: object = None
        self.table = Table(Loaded((), ()))

    def refresh(self) -> bool:
        """Read the manifests again if one changed; True if so."""
        found = signature(self._folder)
        if found == self._signature:
            return False
        self._signature = found
        self.table = Table(load(self._folder), self._engine)
        return True


def check_claims(manifest: Manifest, others: Iterable[Manifest]) -> None:
    """Raise NameTaken if another general claims one of its patterns."""
    for other in others:
        if other.name != manifest.name and (both := set(manifest.subscribes) & set(other.subscribes)):
            raise NameTaken(
                f"{', '.join(sorted(both))} is claimed by {other.name}: remove it from one of the two manifests"
            )
