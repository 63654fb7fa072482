"""`config/envoy.yaml`: how the envoy reaches people. Slack needs tokens, HTTP needs a port."""

from __future__ import annotations

import msgspec

from pabal.apps.kingdom.config import check_least
from pabal.errors import InvalidConfig

FILE = "config/envoy.yaml"


class Slack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The names of the variables with the tokens; the app token is for Socket Mode."""

    bot_token_variable: str = "SLACK_BOT_TOKEN"
    app_token_variable: str = "SLACK_APP_TOKEN"
    api: str = "https://slack.com/api/"


class Http(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP server for questions; port 0 means none."""

    port: int = 0
    host: str = "127.0.0.1"
    token_variable: str = "KINGDOM_HTTP_TOKEN"


class QuestionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    questions: QuestionSettings = QuestionSettings()

    def __post_init__(self) -> None:
        check_least("interval_seconds", self.interval_seconds, 0.1)
