"""The set-up of a kingdom: files with every key, the sample general, and Slack by its page."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pabal.apps.kingdom.chamberlain import settings as chamberlain
from pabal.apps.kingdom.config import read_config
from pabal.apps.kingdom.envoy import settings as envoy
from pabal.apps.kingdom.envoy.questions import Questions
from pabal.apps.kingdom.lookup import unheard
from pabal.apps.kingdom.preflight import SCOPES, check, check_slack
from pabal.apps.kingdom.sample import install_sample
from pabal.apps.kingdom.sentinel import settings as sentinel
from pabal.codecs import yaml
from tests.apps.kingdom.realm import Realm
from tests.apps.kingdom.slack_server import SlackServer

PAGE = Path(__file__).parents[3] / "docs/howto/slack.md"
on_files = pytest.mark.parametrize("kind", ["files"], indirect=True)


@pytest.fixture
def slack() -> Iterator[SlackServer]:
    with closing(SlackServer()) as server:
        yield server


@on_files
def test_every_key_stands_as_a_comment_with_its_default(realm: Realm) -> None:
    files: dict[str, Any] = {envoy.FILE: envoy.Settings, chamberlain.FILE: chamberlain.Settings}
    for name, kind in {**files, sentinel.FILE: sentinel.Settings}.items():
        path = realm.root / name
        assert read_config(path, kind) == kind(), "as it is, it changes nothing"
        _, _, body = path.read_text().partition("\n\n")
        path.write_text(re.sub("^# ", "", body, flags=re.M))
        if name in files:
            assert read_config(path, kind) == kind()
    polling = read_config(realm.root / sentinel.FILE, sentinel.Settings).polling
    assert msgspec.convert(polling["github"], sentinel.GithubSettings) == sentinel.GithubSettings()
    assert set(polling["jira"]) == set(sentinel.JiraSettings.__struct_fields__)
    assert set(polling["any-name"]) == set(sentinel.CommandSettings.__struct_fields__)


def test_the_sample_general_works_and_asks(realm: Realm) -> None:
    install_sample(realm.home)
    changed = realm.root / "sample/gen-hello/soldier.sh"
    changed.write_text("mine")
    assert install_sample(realm.home).name == "gen-hello" and changed.read_text() == "mine", "it stays as it is"
    assert [each.problem for each in check(realm.home) if each.problem and not each.warning] == []
    realm.event("evt-1", "hello.world")
    realm.event("evt-2", "hello.stranger")
    for _ in range(3):
        realm.run_kingdom()
        realm.lead("gen-hello")
    realm.run_kingdom()
    [question] = Questions(realm.home).open()
    assert question.text == "Shall I greet a stranger?"
    Questions(realm.home).answer(question.task_id, "no", responder="ann", via="terminal")
    realm.run_kingdom()
    realm.lead("gen-hello")
    realm.run_kingdom()
    told = [notice["content"] for notice in realm.notices()]
    assert "✅ hello.world — hello" in told and "⏭️ hello.stranger — nobody was greeted" in told


def manifest() -> Any:
    """Return the manifest of the app that the page shows."""
    [text] = re.findall(r"```yaml\n(display_information.*?)```", PAGE.read_text(), re.S)
    return yaml.read(text.encode())


def test_the_app_of_the_page_has_what_the_kingdom_needs() -> None:
    app = manifest()
    assert tuple(app["oauth_config"]["scopes"]["bot"]) == SCOPES
    home = app["features"]["app_home"]
    assert home["messages_tab_enabled"] and home["messages_tab_read_only_enabled"] is False, "for direct messages"
    assert app["settings"]["socket_mode_enabled"] and app["settings"]["interactivity"]["is_enabled"]
    assert set(app["settings"]["event_subscriptions"]["bot_events"]) == {
        "app_mention",
        "message.channels",
        "message.im",
    }


def findings(realm: Realm, slack: SlackServer, *, channel: str = "dev-eddy", **variables: str) -> dict[str, str]:
    (realm.root / "config/envoy.yaml").write_text(f"slack: {{api: '{slack.api}'}}")
    realm.variables |= {"SLACK_BOT_TOKEN": "xoxb-1", "SLACK_APP_TOKEN": "xapp-1", **variables}
    realm.king(slack={"default_channel": channel})
    return {each.what: each.problem for each in check_slack(realm.home)}


@on_files
def test_check_slack_posts_reads_back_and_leaves_nothing(realm: Realm, slack: SlackServer) -> None:
    slack.scopes = ",".join(manifest()["oauth_config"]["scopes"]["bot"])
    assert findings(realm, slack) == {
        "bot token: kingdom in town": "",
        "scopes": "",
        "channel dev-eddy: C0EDDY": "",
        "read back": "",
        "app token and Socket Mode": "",
    }
    assert slack.posts == [] and slack.count("POST", "chat.postMessage") == 1
    assert unheard(realm.home) == ""


@on_files
def test_check_slack_says_what_is_missing(realm: Realm, slack: SlackServer) -> None:
    slack.scopes = "chat:write"
    found = findings(realm, slack)
    assert "channels:history" in found["scopes"] and "missing_scope" in found["read back"]
    slack.not_joined.add("C0EDDY")
    assert "not_in_channel" in findings(realm, slack)["channel dev-eddy"]
    assert "channel_not_found" in findings(realm, slack, channel="nowhere")["channel nowhere"]
    assert "none is configured" in findings(realm, slack, channel="", SLACK_DEFAULT_CHANNEL="")["channel"]
    found = findings(realm, slack, SLACK_APP_TOKEN="xoxb-1")
    assert "not_allowed_token_type" in found["app token and Socket Mode"]
    assert "invalid_auth" in findings(realm, slack, SLACK_BOT_TOKEN="xoxb-revoked")["bot token"]
    assert "is empty" in findings(realm, slack, SLACK_BOT_TOKEN="")["bot token"]
    assert "no Slack token here" in unheard(realm.home)
