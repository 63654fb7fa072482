"""The gateway that runs beside a manager: whether one can run, and a thread that keeps it running.

It is a process of its own (`pabal gateway`): it costs the manager nothing, and the manager goes on if it ends. It ends
with the manager, also if that is killed.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pabal.clock import Clock
from pabal.durable import translated
from pabal.errors import InvalidConfig, InvalidInput
from pabal.filesystem import private
from pabal.manager.config import Config
from pabal.runtime.listening import address_of, bound_socket
from pabal.runtime.origins import TOKEN_LENGTH, is_loopback
from pabal.runtime.process import Command
from pabal.runtime.service import Service
from pabal.runtime.supervisor import Supervisor
from pabal.runtime.wake import FdWatch

LOG = "gateway.log"  # in the folder of the manager's log
TOKEN = "gateway.token"  # in the root of the manager: what browsers sign in with, if there are no keys
_NEEDED = ("httptools", "uvicorn")  # the extra `gateway`


@dataclass(frozen=True, kw_only=True)
class GatewayPlan:
    """What `pabal up` does about a gateway: where it serves, or why there is none."""

    address: str = ""
    reason: str = ""
    arguments: tuple[str, ...] = ()  # of `pabal`


def plan_gateway(config: Config) -> GatewayPlan:
    """Find out whether a gateway can run here. If the configuration asks for one that cannot, raise InvalidConfig."""
    asked = config.gateway
    if asked.enabled is False:
        return GatewayPlan(reason="off")
    keys = config.gateway_keys
    reason, port = "", asked.port
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        reason = "it needs the extra 'gateway' (README, Extras)"
    elif config.clients is not None and keys is None:
        reason = "clients are separate users here, and a gateway without gateway.keys serves everybody on this machine"
    elif keys is None and not is_loopback(asked.host):
        reason = f"{asked.host} can be reached from elsewhere, and a gateway without gateway.keys serves everybody"
    elif keys is not None and not keys.is_file():
        reason = f"no keys at {keys}: make one with `pabal gateway-keys add --keys {keys}`"
    else:
        try:
            with closing(bound_socket(asked.host, asked.port)) as bound:
                address, port = address_of("http", asked.host, bound), bound.getsockname()[1]
        except InvalidInput as exc:
            reason = f"{exc}; choose another with --gateway-port"
    if reason:
        if asked.enabled:
            raise InvalidConfig(f"no gateway can be started: {reason}")
        return GatewayPlan(reason=reason)
    arguments = ["gateway", "--url", config.store_url, "--host", asked.host, "--port", str(port)]
    if keys is not None:
        arguments += ["--keys", str(keys)]
    return GatewayPlan(address=address, arguments=tuple(arguments))


def gateway_token(root: Path) -> str:
    """Return the token of the dashboard, which stays the same over restarts. It is kept for its owner alone."""
    with translated(f"reading {root / TOKEN}"), open(root / TOKEN, "a+", encoding="utf-8", opener=private) as file:
        file.seek(0)
        token = file.read().strip()
        if len(token) < TOKEN_LENGTH:
            token = secrets.token_urlsafe(24)
            file.truncate(0)
            file.write(token + "\n")
    return token


@contextmanager
def running_gateway(
    argv: Sequence[str], folder: Path, variables: Mapping[str, str], clock: Clock, log: Path | None
) -> Iterator[None]:
    """Keep a gateway running, and end it. Its output is appended to `log`, or is ours."""
    with closing(FdWatch()) as watch:
        command = Command(argv=tuple(argv), cwd=folder, env=variables)
        output = None if log is None else lambda name: log
        supervisor = Supervisor({"gateway": command}, clock=clock, watch=watch, output=output)
        service = Service(watch, supervisor)

        def keep() -> None:  # the kernel ends the child with this thread
            try:
                service.run()
            finally:
                supervisor.stop()

        thread = threading.Thread(target=keep, name="pabal-gateway")
        thread.start()
        try:
            yield
        finally:
            service.stop()
            thread.join()
