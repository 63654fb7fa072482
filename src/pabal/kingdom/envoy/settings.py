"""`config/envoy.yaml`: how the envoy reaches people. Without tokens there is no Slack, without a port no HTTP."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pabal.errors import InvalidConfig
from pabal.kingdom.config import read_config

FILE = "config/envoy.yaml"


class Slack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The names of the variables that hold the tokens; the app's is for Socket Mode."""

    bot_token_variable: str = "SLACK_BOT_TOKEN"
    app_token_variable: str = "SLACK_APP_TOKEN"
    api: str = "https://slack.com/api/"


class Http(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where questions can be answered by HTTP; port 0 is nowhere."""

    port: int = 0
    host: str = "127.0.0.1"
    token_variable: str = "KINGDOM_HTTP_TOKEN"


class Asking(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reminder_seconds: float = 86400.0  # 0: no reminders
    expire_seconds: float = 0.0  # 0: never

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) >= 0:
                raise InvalidConfig(f"questions.{name} must be 0 or more; found {getattr(self, name)!r:.40}")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    interval_seconds: float = 5.0
    slack: Slack = Slack()
    http: Http = Http()
    questions: Asking = Asking()

    def __post_init__(self) -> None:
        if not self.interval_seconds >= 0.1:
            raise InvalidConfig(f"interval_seconds must be at least 0.1; found {self.interval_seconds!r:.40}")


def read_settings(root: Path) -> Settings:
    return read_config(root / FILE, Settings)
