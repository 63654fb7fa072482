"""What the envoy says and hears, with Slack's own SDK against a server on this machine."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

from pabal.apps.kingdom.documents import instant
from pabal.apps.kingdom.envoy.conversations import Conversations
from pabal.apps.kingdom.envoy.inbound import Inbound
from pabal.apps.kingdom.envoy.outbound import Outbound
from pabal.apps.kingdom.envoy.questions import Questions
from pabal.apps.kingdom.envoy.role import ClosedQuestions, Upkeep, tasks
from pabal.apps.kingdom.envoy.settings import Settings, Slack
from pabal.apps.kingdom.envoy.slack import SlackChat, client
from pabal.apps.kingdom.king.resume import QuestionUpkeep
from pabal.apps.kingdom.layout import MESSAGES
from pabal.apps.kingdom.roles import reclaim
from pabal.apps.kingdom.status import report
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.kingdom.realm import Realm, eventually, everywhere, saying
from tests.apps.kingdom.servers import Answer
from tests.apps.kingdom.slack_server import SlackServer, interaction


@pytest.fixture
def slack() -> Iterator[SlackServer]:
    with closing(SlackServer()) as server:
        yield server


class Envoy:
    """An envoy in this process, which speaks through the SDK; messages are given to it without a socket."""

    def __init__(self, realm: Realm, slack: SlackServer | None, settings: Settings | None = None) -> None:
        self.realm = realm
        settings = settings or Settings()
        self.questions, self.conversations = Questions(realm.home), Conversations(realm.home)
        chat = SlackChat(client("xoxb-1", slack.api)) if slack else None
        self.outbound = Outbound(realm.home, settings, chat, self.conversations, self.questions)
        self.inbound = Inbound(realm.home, self.conversations, self.questions, chat)
        self.closed = ClosedQuestions(realm.home, self.questions, chat)
        self.tending = Upkeep(realm.home, settings.questions, self.questions, self.conversations)

    def speak(self) -> None:
        self.outbound.step()
        while self.outbound.next_due() == 0:
            self.outbound.step()

    def hear(self, text: str, ts: str, **fields: Any) -> str:
        return self.inbound.take(
            {"type": "message", "user": "U1", "channel": "C0MAIN", "text": text, "ts": ts, **fields}
        )


@pytest.fixture
def envoy(realm: Realm, slack: SlackServer) -> Envoy:
    return Envoy(realm, slack)


def tell(realm: Realm, type: str, content: str, **fields: Any) -> None:
    realm.home.publish_notices(realm.home.notice(type, content, **fields))


def events(realm: Realm) -> list[Any]:
    return realm.bodies("events")


def asking(realm: Realm, kind: str = "text", **context: Any) -> None:
    realm.general(script=saying(status="needs_human", question="which branch?", kind=kind, **context))
    realm.event()
    realm.run_kingdom()
    realm.lead()
    realm.run_kingdom()


@pytest.mark.parametrize(("how", "options"), [("confirm", []), ("choose", ["yes", "no"])])
def test_a_question_has_buttons_and_the_first_answer_closes_it_in_all_places(
    realm: Realm, envoy: Envoy, slack: SlackServer, how: str, options: list[str]
) -> None:
    asking(realm, how, options=options)
    envoy.speak()
    asked = slack.posts[1]
    assert [button["text"]["text"] for button in asked["blocks"][1]["elements"]] == ["yes", "no"]
    payload = interaction(asked, "yes", name="ann")
    assert envoy.inbound.press(payload) and envoy.inbound.press(payload) == "", "it came twice"
    [question] = envoy.questions.all()
    assert (question.answer, question.responder, question.via, question.state) == ("yes", "ann", "slack", "answered")
    assert (
        envoy.inbound.press(
            interaction(asked, "no", user="U2", name="bob")
            | {"actions": [{**interaction(asked, "no")["actions"][0], "action_ts": "1700000700.000100"}]}
        )
        == ""
    )
    envoy.closed.step()
    assert len(asked["blocks"]) == 1 and asked["text"].endswith("Answered by ann (slack): yes")
    envoy.speak()
    assert "was answered already, by ann (slack)" in slack.posts[-1]["text"]
    assert slack.posts[-1]["thread_ts"] == slack.posts[0]["ts"]
    assert len(events(realm)) == 1


def test_an_answer_in_the_terminal_takes_the_buttons_away(realm: Realm, envoy: Envoy, slack: SlackServer) -> None:
    asking(realm, "confirm")
    envoy.speak()
    envoy.closed.step()
    assert len(slack.posts[1]["blocks"]) == 2
    [question] = envoy.questions.open()
    envoy.questions.answer(question.task_id, "no", responder="<!channel>", via="terminal")
    slack.refusal = lambda asked: Answer(429, {"ok": False, "error": "ratelimited"}, {"Retry-After": "20"})
    envoy.closed.step()
    slack.refusal = lambda asked: None
    realm.clock.advance(21)  # type: ignore[attr-defined]  # a manual clock
    envoy.closed.step()
    assert len(slack.posts[1]["blocks"]) == 1 and slack.posts[1]["text"].endswith("(terminal): no")
    assert "<!channel>" not in slack.posts[1]["text"]
    count = len(slack.asked)
    envoy.closed.step()
    assert len(slack.asked) == count, "said once"


def test_odd_interactions_are_nobody_s_answer(envoy: Envoy) -> None:
    for payload in ({}, {"type": "view_submission"}, {"type": "block_actions", "actions": [1], "user": {}}):
        assert envoy.inbound.press(payload) == ""


def test_a_task_has_one_thread_from_its_start_to_its_result(realm: Realm, envoy: Envoy, slack: SlackServer) -> None:
    realm.general()
    realm.event()
    realm.run_kingdom()
    realm.lead()
    realm.run_kingdom()
    envoy.speak()
    start, end = slack.posts
    assert start["text"].startswith("[start] github.pr.assigned") and "thread_ts" not in start
    assert end["text"].startswith("✅") and end["thread_ts"] == start["ts"] and end["channel"] == "C0MAIN"
    assert envoy.conversations.thread_of(realm.tasks(State.DONE)[0]["id"]) is None
    assert realm.notices() == [] and len(realm.bodies(MESSAGES, State.DONE)) == 2


@everywhere
def test_an_envoy_who_died_with_the_start_in_hand_still_says_it_first(
    realm: Realm, slack: SlackServer, clock: ManualClock
) -> None:
    realm.general()
    realm.event()
    realm.run_kingdom()
    assert len(realm.home.queue(MESSAGES).lease(20)) == 1
    clock.advance(1)
    realm.lead()
    realm.run_kingdom()
    clock.advance(1)
    reclaim(realm.home, MESSAGES)
    Envoy(realm, slack).speak()
    start, end = slack.posts
    assert start["text"].startswith("[start]") and end["text"].startswith("✅")
    assert end["thread_ts"] == start["ts"]


def test_a_notice_for_another_channel_goes_there(realm: Realm, envoy: Envoy, slack: SlackServer) -> None:
    tell(realm, "thread_start", "[start] x", task_id="task-20260101-001")
    tell(realm, "notification", "told elsewhere", task_id="task-20260101-001", channel="C0TEAM")
    envoy.speak()
    assert slack.posts[1]["channel"] == "C0TEAM" and "thread_ts" not in slack.posts[1]


def test_a_question_is_asked_in_its_thread_and_the_answer_there_goes_on_with_the_work(
    realm: Realm, envoy: Envoy, slack: SlackServer
) -> None:
    asking(realm)
    envoy.speak()
    start, question = slack.posts
    assert "[question] which branch?" in question["text"] and question["thread_ts"] == start["ts"]
    reply = {"thread_ts": start["ts"]}
    id = envoy.hear("main; $(reboot) `x` '\"", "1700000100.000100", **reply)
    assert id and envoy.hear("main", "1700000100.000100", **reply) == ""  # it came twice
    [event] = events(realm)
    assert event["type"] == "slack.thread.reply" and event["id"].startswith(
        f"evt-slack-reply-{start['ts'].replace('.', '-')}-"
    )
    realm.run_kingdom()
    [task] = realm.tasks()
    assert task["type"] == "resume" and task["payload"]["human_response"] == "main; $(reboot) `x` '\""
    envoy.speak()
    assert slack.posts[-1]["thread_ts"] == start["ts"] and "goes on as" in slack.posts[-1]["text"]


@pytest.mark.parametrize("channel", ["dev-eddy", "#dev-eddy", "C0EDDY", "U0ANN"])
def test_a_channel_may_be_configured_by_its_name_and_threads_and_answers_are_found_by_its_id(
    realm: Realm, slack: SlackServer, channel: str
) -> None:
    realm.king(slack={"default_channel": channel})
    envoy = Envoy(realm, slack)
    asking(realm)
    envoy.speak()
    start, question = slack.posts
    assert question["thread_ts"] == start["ts"] and question["channel"] == start["channel"]
    assert envoy.hear("main", "1700000100.000100", channel=start["channel"], thread_ts=start["ts"])
    realm.run_kingdom()
    [task] = realm.tasks()
    assert task["payload"]["human_response"] == "main" and task["payload"]["channel"] == start["channel"]
    realm.general(script=saying(status="success"))
    realm.lead()
    realm.run_kingdom()
    envoy.speak()
    assert len(slack.posts) == 4 and {post["thread_ts"] for post in slack.posts[1:]} == {start["ts"]}


def test_the_first_answer_closes_a_question_everywhere(realm: Realm, envoy: Envoy, slack: SlackServer) -> None:
    asking(realm)
    envoy.speak()
    [question] = envoy.questions.open()
    envoy.questions.answer(question.task_id, "main", responder="ann", via="terminal")
    assert envoy.hear("dev", "1700000100.000100", thread_ts=slack.posts[0]["ts"]) == ""
    assert len(events(realm)) == 1 and envoy.questions.open() == []


def test_an_answer_that_is_no_choice_is_refused_in_the_thread_and_the_question_stays_open(
    realm: Realm, envoy: Envoy, slack: SlackServer
) -> None:
    asking(realm, "choose", options=["main", "dev"])
    envoy.speak()
    assert slack.posts[1]["text"].endswith("1. main\n2. dev")
    reply = {"thread_ts": slack.posts[0]["ts"]}
    assert envoy.hear("prod", "1700000100.000100", **reply) == ""
    envoy.speak()
    assert "1 main, 2 dev" in slack.posts[-1]["text"] and slack.posts[-1]["thread_ts"] == slack.posts[0]["ts"]
    assert envoy.hear("2", "1700000101.000100", **reply)
    assert events(realm)[0]["payload"]["text"] == "dev"


def test_reminders_repeat_and_expiry_is_off_unless_asked_for(realm: Realm, clock: ManualClock) -> None:
    asking(realm)
    envoy = Envoy(realm, None)
    envoy.speak()
    for _ in range(3):
        clock.advance(86400)
        envoy.tending.step()
        envoy.tending.step()
    told = [notice["content"] for notice in realm.notices()]
    assert told == ["[question] still open: which branch?"] * 3
    assert len(envoy.questions.open()) == 1


def test_a_question_with_an_expiry_runs_out_and_takes_no_answer(realm: Realm, clock: ManualClock) -> None:
    (realm.root / "config/envoy.yaml").write_text("questions: {expire_seconds: 3600}")
    asking(realm)
    envoy = Envoy(realm, None)
    envoy.speak()
    clock.advance(3601)
    [question] = envoy.questions.all()
    for state in ("open", "expired"):
        assert envoy.questions.find(question.task_id).state == state
        with pytest.raises(ValueError, match="ran out"):
            envoy.questions.answer(question.task_id, "main", responder="ann", via="terminal")
        QuestionUpkeep(realm.home).step()
    assert "ran out" in realm.notices()[0]["content"]


def test_a_soldier_may_ask_for_an_expiry_of_its_question(realm: Realm, clock: ManualClock) -> None:
    asking(realm, expire_seconds=120)
    envoy = Envoy(realm, None)
    envoy.speak()
    [question] = envoy.questions.open()
    assert instant(question.expires_at) == clock.now() + 120
    clock.advance(121)
    QuestionUpkeep(realm.home).step()
    assert envoy.questions.find(question.task_id).state == "expired"


def test_direct_messages_and_mentions_become_events_once_and_are_marked(
    realm: Realm, envoy: Envoy, slack: SlackServer
) -> None:
    for _ in range(2):
        envoy.hear("do it", "1700000001.000200", channel="D1", channel_type="im")
        envoy.hear("<@U0> do it", "1700000002.000200", type="app_mention")
    envoy.hear("talk of others", "1700000003.000200", channel_type="channel")
    envoy.hear("our own", "1700000004.000200", channel_type="im", bot_id="B1")
    assert {(event["id"], event["type"]) for event in events(realm)} == {
        ("evt-slack-msg-1700000001-000200", "slack.channel.message"),
        ("evt-slack-mention-1700000002-000200", "slack.app_mention"),
    }
    assert slack.reactions == {("D1", "1700000001.000200", "eyes"), ("C0MAIN", "1700000002.000200", "eyes")}


def test_a_conversation_goes_on_until_its_time_is_over(
    realm: Realm, envoy: Envoy, slack: SlackServer, clock: ManualClock
) -> None:
    realm.general(subscribes=["slack.channel.message"])
    at = f"{int(clock.now())}.000100"
    envoy.hear("do it", at, channel="D1", channel_type="im")
    realm.run_kingdom()
    realm.lead()
    realm.run_kingdom()
    envoy.speak()
    assert slack.posts[-1]["thread_ts"] == at and ("D1", at, "white_check_mark") in slack.reactions
    assert ("D1", at, "eyes") not in slack.reactions
    reply = {"channel": "D1", "channel_type": "im", "thread_ts": at}
    clock.advance(3000)
    assert envoy.hear("and more", f"{int(clock.now())}.000100", **reply)
    realm.run_kingdom()
    assert realm.tasks()[-1]["type"] == "resume" and realm.tasks()[-1]["target_general"] == "gen-pr"
    clock.advance(3000)  # it was kept going by the reply
    assert envoy.hear("still there?", f"{int(clock.now())}.000100", **reply)
    clock.advance(3601)
    envoy.tending.step()
    assert envoy.hear("hello?", f"{int(clock.now())}.000100", **reply) == ""


def test_the_thread_of_a_task_that_never_ended_is_forgotten_after_a_month(
    realm: Realm, envoy: Envoy, slack: SlackServer, clock: ManualClock
) -> None:
    tell(realm, "thread_start", "[start] x", task_id="task-20260101-001")
    envoy.speak()
    envoy.tending.step()
    assert envoy.conversations.thread_of("task-20260101-001")
    clock.advance(31 * 86400)
    envoy.tending.step()
    assert envoy.conversations.thread_of("task-20260101-001") is None


def test_notices_made_by_many_threads_have_ids_of_their_own(realm: Realm) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = [notice.id for notice in pool.map(lambda _: realm.home.notice("report", "x"), range(200))]
    assert len(set(ids)) == 200


def test_10_two_replies_within_a_second_are_two_events(realm: Realm, envoy: Envoy, clock: ManualClock) -> None:
    track = {"reply_context": {"general": "gen-pr"}, "ttl_seconds": 3600}
    tell(realm, "thread_reply", "hello", thread_ts="1700000000.000001", track_conversation=track)
    envoy.speak()
    second = int(clock.now())
    for _ in range(2):
        envoy.hear("one", f"{second}.000100", thread_ts="1700000000.000001")
        envoy.hear("two", f"{second}.000200", thread_ts="1700000000.000001")
    first = f"evt-slack-reply-1700000000-000001-{second}"
    assert {event["id"]: event["payload"]["text"] for event in events(realm)} == {
        first: "one",
        f"{first}-000200": "two",
    }


def test_8_what_is_said_in_a_chat_is_data_and_calls_nobody(realm: Realm, envoy: Envoy, slack: SlackServer) -> None:
    tell(realm, "notification", "<!channel> ' ; rm -rf / $(id) \n\0")
    envoy.speak()
    assert slack.posts[0]["text"].startswith("&lt;!channel> ' ; rm -rf / $(id)")


def test_what_slack_refuses_is_tried_three_times_and_then_lies_in_failed(
    realm: Realm, envoy: Envoy, slack: SlackServer, clock: ManualClock
) -> None:
    tell(realm, "notification", "to nowhere", channel="C0GONE")
    tell(realm, "notification", "to somewhere")
    slack.refusal = lambda asked: (
        Answer(200, {"ok": False, "error": "channel_not_found"}) if b"C0GONE" in asked.body else None
    )
    for _ in range(5):
        envoy.speak()
        clock.advance(31)
    assert [post["text"] for post in slack.posts] == ["to somewhere"]
    assert slack.count("POST") == 4
    [dead] = realm.home.queue(MESSAGES).browse(State.DEAD)
    assert dead.failure and "channel_not_found" in dead.failure.reason
    if realm.home.on_files:
        assert len(list((realm.root / "queue/messages/failed").glob("msg-*.json"))) == 1


@pytest.mark.parametrize("error", ["not_in_channel", "channel_not_found", "invalid_auth", "missing_scope"])
def test_notices_wait_until_slack_is_set_up(
    realm: Realm, envoy: Envoy, slack: SlackServer, clock: ManualClock, error: str
) -> None:
    for number in range(2):
        tell(realm, "notification", f"number {number}")
    slack.refusal = lambda asked: Answer(200, {"ok": False, "error": error})
    for _ in range(5):
        envoy.speak()
        clock.advance(31)
    assert realm.home.queue(MESSAGES).counts()[State.DEAD] == 0
    assert len(realm.journal("system.warning")) == 1, "noted once"
    [problem] = [each for each in report(realm.home).problems if each.startswith("envoy: ")]
    assert error in problem and "notices wait" in problem
    slack.refusal = lambda asked: None
    clock.advance(31)
    envoy.speak()
    assert [post["text"] for post in slack.posts] == ["number 0", "number 1"]
    assert not [each for each in report(realm.home).problems if each.startswith("envoy: ")]


def test_a_reply_after_the_first_answer_is_told_once_who_answered(
    realm: Realm, envoy: Envoy, slack: SlackServer
) -> None:
    asking(realm)
    envoy.speak()
    reply = {"thread_ts": slack.posts[0]["ts"]}
    assert envoy.hear("main", "1700000100.000100", user="U0451ANN", **reply)
    before = len(realm.notices())
    assert envoy.hear("dev", "1700000101.000100", user="U0452BOB", **reply) == ""
    assert envoy.hear("dev", "1700000101.000100", user="U0452BOB", **reply) == "", "it came twice"
    assert envoy.hear("oh, thanks", "1700000102.000100", user="U0452BOB", **reply) == ""
    assert envoy.hear("you are welcome", "1700000103.000100", user="U0451ANN", **reply) == ""
    told = [notice["content"] for notice in realm.notices()][before:]
    assert told == [f"Sorry: {envoy.questions.all()[0].task_id} was answered already, by <@U0451ANN> (slack): 'main'"]
    envoy.closed.step()
    assert slack.posts[1]["text"].endswith("Answered by <@U0451ANN> (slack): main")


def test_a_malformed_notice_is_set_aside_with_its_reason_and_the_next_one_is_said(
    realm: Realm, envoy: Envoy, slack: SlackServer, clock: ManualClock
) -> None:
    if realm.home.on_files:
        draft = realm.root / "draft.json"
        draft.write_text('{"id": "msg-20260207-900", "type": "shout", "content": "hey"}')
        draft.rename(realm.root / "queue/messages/pending/msg-20260207-900.json")
    else:
        realm.home.queue(MESSAGES).publish({"id": "msg-20260207-900", "type": "shout", "content": "hey"})
    realm.home.publish_notices(realm.home.notice("notification", "all is well"))
    clock.advance(3)
    envoy.speak()
    assert [post["text"] for post in slack.posts] == ["all is well"]
    [problem] = [each for each in report(realm.home).problems if each.startswith("messages: ")]
    assert "Invalid enum value 'shout'" in problem and "InvalidBody" not in problem and "ERROR" not in problem


def test_a_rate_limit_holds_everything_and_is_no_try(
    realm: Realm, envoy: Envoy, slack: SlackServer, clock: ManualClock
) -> None:
    for number in range(3):
        tell(realm, "notification", f"number {number}")
    slack.refusal = lambda asked: Answer(429, {"ok": False, "error": "ratelimited"}, {"Retry-After": "20"})
    for _ in range(10):
        envoy.speak()
        clock.advance(10)
    assert slack.count("POST") == 5
    slack.refusal = lambda asked: None
    clock.advance(20)
    envoy.speak()
    assert [post["text"] for post in slack.posts] == ["number 0", "number 1", "number 2"]


def test_a_slack_that_cannot_be_reached_loses_nothing(realm: Realm, clock: ManualClock) -> None:
    gone = SlackServer()
    gone.close()
    envoy = Envoy(realm, gone)
    tell(realm, "notification", "later")
    for _ in range(4):  # more often than a refused notice is tried
        envoy.speak()
        clock.advance(11)
    assert any("cannot be reached" in problem for problem in report(realm.home).problems)
    envoy.outbound.close()
    assert len(realm.notices()) == 1


def test_a_killed_envoy_does_not_wear_a_notice_out(realm: Realm, slack: SlackServer) -> None:
    tell(realm, "notification", "said at last")
    for _ in range(6):
        assert realm.home.queue(MESSAGES).lease()
        reclaim(realm.home, MESSAGES)
    Envoy(realm, slack).speak()
    assert [post["text"] for post in slack.posts] == ["said at last"]


def test_without_slack_notices_are_kept_as_said_and_questions_are_open(realm: Realm) -> None:
    asking(realm)
    envoy = Envoy(realm, None)
    envoy.speak()
    assert realm.notices() == [] and len(envoy.questions.open()) == 1
    assert len(realm.journal("message.sent")) == 2


def test_socket_mode_acknowledges_what_is_safe_and_hears_questions_answered(realm: Realm, slack: SlackServer) -> None:
    realm.home.variables = {**realm.variables, "SLACK_BOT_TOKEN": "xoxb-1", "SLACK_APP_TOKEN": "xapp-1"}
    asking(realm)
    with ExitStack() as stack:
        found = tasks(realm.home, Settings(slack=Slack(api=slack.api)), stack)
        for _ in range(4):
            for task in found:
                task.step()
        eventually(lambda: slack.sockets.connected)
        envelope = slack.say("main", "1700000100.000100", thread_ts=slack.posts[0]["ts"])
        eventually(lambda: envelope in slack.sockets.acknowledged)
        assert [event["payload"]["text"] for event in events(realm)] == ["main"]
        realm.general(script=saying(status="needs_human", question="sure?", kind="confirm"))
        realm.run_kingdom()
        realm.lead()
        realm.run_kingdom()
        for _ in range(6):
            for task in found:
                task.step()
        post = next(post for post in slack.posts if len(post.get("blocks", [])) == 2)
        pressed = slack.press(post, "yes")
        eventually(lambda: pressed in slack.sockets.acknowledged)
        [by_button] = [event["payload"] for event in events(realm)]
        assert (by_button["text"], by_button["user_id"], by_button["via"]) == ("yes", "ann", "slack")
        again = slack.say("hello", "1700000200.000100", channel="D1", channel_type="im")
        eventually(lambda: again in slack.sockets.acknowledged)
        assert len(events(realm)) == 2
