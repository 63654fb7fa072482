"""The preflight check: does everything exist that a kingdom needs, before events arrive.

`check` looks at files, programs and variables. `check_slack` talks to Slack: it posts a message, reads it back and
removes it, and names the scope or setting that is missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from pabal.apps.kingdom.documents import Task
from pabal.apps.kingdom.envoy.slack import client
from pabal.apps.kingdom.general.soldier import argv_of
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.manifests import FOLDER, Manifest, Table, external_problems, load
from pabal.apps.kingdom.status import config_problems
from pabal.errors import PabalError

if TYPE_CHECKING:
    from slack_sdk import WebClient

SCOPES = ("chat:write", "channels:history", "reactions:write", "app_mentions:read", "im:history")


class Finding(NamedTuple):
    """One thing that was checked; `problem` is empty if it is well, `advice` is what to do."""

    what: str
    problem: str = ""
    advice: str = ""
    warning: bool = False  # the kingdom works without it


def check(home: Home) -> list[Finding]:
    """Check the configuration, manifests, commands, plugins and tokens of a kingdom."""
    table = Table(load(home.root / FOLDER), home.config.engine)
    found = [Finding("configuration", problem) for problem in config_problems(home)] or [Finding("configuration")]
    found += [Finding("manifests", problem, f"mend it in {FOLDER}/") for problem in table.problems]
    found += [Finding("external general", problem) for problem in external_problems(home, table)]
    if not table.generals:
        advice = "`pabal kingdom install-general PATH`, or `pabal kingdom init --example`"
        found.append(Finding("generals", "there are none: every event is completed without work", advice, warning=True))
    for manifest in table.generals.values():
        found += check_general(home, manifest)
    return [*found, *_check_tokens(home)]


def check_general(home: Home, manifest: Manifest) -> list[Finding]:
    """Check what one general needs: its command or engine, its plugins, git and the library for schedules."""
    found = []
    if not manifest.external:
        try:
            task = Task(id="task-00000000-000", type="check", event_id="", target_general=manifest.name)
            argv = argv_of(home, manifest, task)
            problem = "" if shutil.which(argv[0]) else f"{argv[0]} is no program that can be run"
            found.append(Finding(f"{manifest.name}: command {argv[0]}", problem, "install it, or chmod +x"))
        except PabalError as exc:
            found.append(Finding(f"{manifest.name}: command", str(exc)))
    for name in manifest.cc_plugins:
        there = (home.root / "plugins" / name).is_dir()
        problem = "" if there else f"plugins/{name} is not there"
        found.append(Finding(f"{manifest.name}: plugin {name}", problem, f"put it into {home.root / 'plugins' / name}"))
    if manifest.default_repo and not shutil.which("git", path=home.variables.get("PATH")):
        found.append(Finding(f"{manifest.name}: git", "there is no program git", "install it"))
    if manifest.schedules and find_spec("cronsim") is None:
        remedy = "install Pabal with its extra 'kingdom' (README, Extras)"
        found.append(Finding(f"{manifest.name}: schedules", "cronsim is missing", remedy))
    return found


def _check_tokens(home: Home) -> Iterator[Finding]:
    if "envoy" not in home.config.roles:
        return
    slack = home.envoy.slack
    for name, use in ((slack.bot_token_variable, "to post"), (slack.app_token_variable, "to receive answers")):
        problem = "" if home.variables.get(name) else f"the variable {name} is empty: no Slack {use}"
        yield Finding(f"token {name}", problem, "see docs/howto/slack.md", warning=True)
    if home.variables.get(slack.bot_token_variable):
        if find_spec("slack_sdk") is None:
            remedy = "install Pabal with its extra 'slack' (README, Extras)"
            yield Finding("slack-sdk", "it is not installed", remedy)
        problem = "" if home.default_channel else "no channel is configured: notices to people fail"
        yield Finding("default channel", problem, "set slack.default_channel in config/king.yaml")


def check_slack(home: Home) -> Iterator[Finding]:
    """Check Slack: the tokens, scopes, channel and connection. The test message is removed again."""
    slack = home.envoy.slack
    token, app_token = (home.variables.get(name, "") for name in (slack.bot_token_variable, slack.app_token_variable))
    if not token:
        yield Finding("bot token", f"the variable {slack.bot_token_variable} is empty", "see docs/howto/slack.md")
        return
    web = client(token, slack.api)
    answer, error = _ask(web, "auth.test")
    if answer is None:
        yield Finding(
            "bot token", f"Slack refused it: {error}", "copy the Bot User OAuth Token (xoxb-…) of the app again"
        )
        return
    yield Finding(f"bot token: {answer.get('user')} in {answer.get('team')}")
    granted = str(answer.headers.get("x-oauth-scopes") or answer.headers.get("X-OAuth-Scopes") or "")
    missing = [scope for scope in SCOPES if scope not in granted.split(",")] if granted else []
    problem = f"missing: {', '.join(missing)}" if missing else ""
    yield Finding("scopes", problem, "add them under OAuth & Permissions, and install the app again")
    yield from _check_channel(web, home.default_channel)
    if not app_token:
        name = slack.app_token_variable
        yield Finding("app token", f"the variable {name} is empty: no answers from Slack", "see docs/howto/slack.md")
        return
    answer, error = _ask(client(app_token, slack.api), "apps.connections.open")
    problem = "" if answer is not None else f"Slack refused it: {error}"
    yield Finding("app token and Socket Mode", problem, "switch Socket Mode on; the token needs connections:write")


_ADVICE = {
    "channel_not_found": "write its id into config/king.yaml; invite the app to it if it is private",
    "not_in_channel": "invite the app: /invite @kingdom in that channel",
    "missing_scope": "add the scope under OAuth & Permissions, and install the app again",
}


def _check_channel(web: WebClient, channel: str) -> Iterator[Finding]:
    if not channel:
        yield Finding("channel", "none is configured", "set slack.default_channel in config/king.yaml")
        return
    text = "pabal kingdom check: this message is removed at once."
    answer, error = _ask(web, "chat.postMessage", channel=channel, text=text)
    if answer is None:
        yield Finding(f"channel {channel}", f"cannot be posted to: {error}", _ADVICE.get(error, ""))
        return
    id, ts = str(answer["channel"]), str(answer["ts"])
    yield Finding(f"channel {channel}: {id}")
    back, error = _ask(web, "conversations.replies", channel=id, ts=ts)
    read = back is not None and any(text in str(each.get("text")) for each in back.get("messages", []))
    problem = "" if read else f"the message cannot be read back: {error or 'it is not there'}"
    yield Finding("read back", problem, _ADVICE.get(error, "add channels:history (groups:history if it is private)"))
    _ask(web, "chat.delete", channel=id, ts=ts)


def _ask(web: WebClient, method: str, **fields: str) -> tuple[Any, str]:
    """Call a method of Slack; return its answer, or None and the error."""
    from slack_sdk.errors import SlackApiError, SlackClientError

    try:
        if method == "conversations.replies":
            return web.api_call(method, http_verb="GET", params=fields), ""
        return web.api_call(method, json=fields or None), ""
    except SlackApiError as exc:
        answer: Any = exc.response
        return None, str(answer.get("error") if answer.data else f"status {answer.status_code}")
    except (SlackClientError, OSError) as exc:
        return None, f"it cannot be reached: {exc}"
