"""One zygote for each store, as long as the tests run."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.crash.harness import Commands, Zygote
from tests.openers import OPENERS


@pytest.fixture(scope="session")
def zygotes() -> Iterator[dict[str, Zygote]]:
    started: dict[str, Zygote] = {}
    yield started
    for zygote in started.values():
        zygote.close()


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    need("strace", shutil.which("strace") is not None)
    started = Commands()
    yield started
    started.close()


@pytest.fixture(params=OPENERS)
def zygote(request: pytest.FixtureRequest, zygotes: dict[str, Zygote]) -> Zygote:
    need("strace", shutil.which("strace") is not None)
    store: str = request.param
    if store not in zygotes:
        zygotes[store] = Zygote(store)
    return zygotes[store]


def need(what: str, there: bool) -> None:
    """Skip aloud what cannot be tested here; where everything should be there, fail."""
    if not there:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have {what}")
        pytest.skip(f"needs {what}")
