"""The dashboard in Chromium: what an operator sees and does."""

from __future__ import annotations

import re
from datetime import datetime

from playwright.sync_api import Page, Route, expect

import pabal
from pabal.gateway.api.types import NewMessage
from pabal.policy.policy import document_of
from pabal.store import State
from tests.gateway.conftest import Running
from tests.gateway.web.conftest import OpenPage
from tests.waiting import until


def fail(queue: pabal.Queue, body: object, reason: str, **options: object) -> str:
    id = queue.publish(body, **options).id  # type: ignore[arg-type]  # options of publish
    queue.lease()[0].nack(reason=reason)
    return id


def test_a_dead_message_is_found_understood_and_sent_again(emails: pabal.Queue, open_page: OpenPage) -> None:
    fail(emails, {"to": "ann@example.org"}, "SMTP 421: mailbox busy")
    page = open_page()
    expect(page.get_by_role("row", name=re.compile("emails"))).to_contain_text("1 dead")
    page.get_by_role("link", name="1", exact=True).click()
    expect(page.get_by_role("row", name=re.compile("SMTP 421"))).to_be_visible()
    page.locator("td.id a").click()
    expect(page.locator(".failure")).to_contain_text("SMTP 421: mailbox busy")
    expect(page.locator(".json")).to_contain_text("ann@example.org")
    page.get_by_role("button", name="Send it again").click()
    expect(page.locator(".lead")).to_contain_text("waits for a consumer")
    assert emails.counts()[State.READY] == 1


def test_what_needs_attention_leads_to_its_messages_and_back(emails: pabal.Queue, open_page: OpenPage) -> None:
    fail(emails, "a", "why")
    page = open_page()
    page.get_by_role("link", name="1 dead", exact=True).click()
    page.locator("td.id a").click()
    page.get_by_role("link", name="emails", exact=True).click()
    expect(page.get_by_role("link", name="Dead")).to_have_attribute("aria-current", "page")
    page.get_by_role("checkbox", name="Choose all").check()
    page.get_by_role("button", name="Redrive to").click()
    expect(page.get_by_role("dialog")).to_contain_text("Make the 1 chosen message of emails ready again?")
    page.get_by_role("button", name="Redrive 1").click()
    expect(page.get_by_role("link", name="Dead")).to_contain_text("0")
    page.get_by_role("button", name="Redrive all").click()  # nothing to ask about
    expect(page.get_by_text("No dead messages.")).to_have_count(2)
    page.goto(page.url.split("#")[0] + "#/")
    page.get_by_role("searchbox", name="Find a queue").fill("orders")
    expect(page.get_by_text('No queue has "orders" in its name.')).to_be_visible()


def test_the_worst_comes_first_then_what_waits_then_the_rest_by_name(
    emails: pabal.Queue, mq: pabal.Connection, open_page: OpenPage
) -> None:
    for name in ("b-waits", "a-waits"):
        mq.queue(name).publish(1)
        mq.queue(name).pause()
    for name in ("d-plain", "c-plain", "zz-dead"):
        mq.queue(name).publish(1)
    mq.queue("zz-dead").lease()[0].bury("why")
    fail(emails, 1, "why")
    page = open_page()
    names = page.locator("table.queues tbody th > a:first-child")
    expect(names).to_have_text(["emails", "zz-dead", "a-waits", "b-waits", "c-plain", "d-plain"])


def test_the_line_the_rate_and_the_oldest_age_are_drawn(emails: pabal.Queue, open_page: OpenPage) -> None:
    page = open_page()
    row = page.get_by_role("row", name=re.compile("emails"))
    cells = row.locator("td")
    expect(cells.nth(5)).to_have_text("·")  # nothing comes in
    emails.publish_many(range(50))
    expect(cells.nth(4)).to_have_text(re.compile(r"^\d+(\.\d)?s$"))  # the oldest
    expect(cells.nth(5)).to_have_text(re.compile(r"^\d+(\.\d)?/s$"))
    expect(row.locator("svg.spark rect.in").last).to_have_attribute("height", "25")  # most of the line
    expect(row.locator("svg.spark rect.out")).to_have_count(0)


def test_the_reason_comes_first_and_reasons_are_counted_and_set_the_search(
    emails: pabal.Queue, open_page: OpenPage
) -> None:
    trace = 'Traceback (most recent call last):\n  File "w.py", line 4\nConnectionResetError: [Errno 104]'
    for number, reason in enumerate(["SMTP 421: busy", "no such user", "SMTP 421: busy", trace, ""]):
        fail(emails, number, reason)
    page = open_page("#/queues/emails/dead")
    rows = page.locator("table.messages tbody tr")
    expect(rows.nth(0).locator(".why")).to_have_text("SMTP 421: busy")
    expect(rows.nth(0).locator(".about")).to_have_text("NACKED, attempt 1 of 1")
    expect(rows.nth(3).locator(".why")).to_have_text("ConnectionResetError: [Errno 104]")
    expect(rows.nth(4).locator(".why")).to_have_text("NACKED")
    reasons = page.get_by_role("navigation", name="Reasons").get_by_role("link")
    expect(reasons).to_have_text(["SMTP 421: busy2", "no such user1", "ConnectionResetError: [Errno 104]1", "NACKED1"])
    reasons.first.click()
    expect(page.get_by_role("searchbox", name="Search messages")).to_have_value("SMTP 421: busy")
    expect(rows).to_have_count(2)
    expect(reasons).to_have_count(4)  # of all dead messages
    reasons.first.click()  # again: all of them
    expect(rows).to_have_count(5)
    reasons.nth(2).click()
    expect(rows).to_have_count(1)
    page.locator("td.id a").click()
    expect(page.locator(".failure strong")).to_contain_text("Traceback (most recent call last)")


def test_all_that_match_are_counted_asked_for_and_redriven(emails: pabal.Queue, open_page: OpenPage) -> None:
    for number in range(7):
        fail(emails, {"number": number}, "SMTP 421" if number % 2 else "no such user")
    page = open_page("#/queues/emails/dead")
    page.get_by_role("searchbox", name="Search messages").fill("smtp")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("table.messages tbody tr")).to_have_count(3)
    page.get_by_role("button", name="Redrive all that match").click()
    expect(page.get_by_role("dialog")).to_contain_text("3 dead messages")
    page.get_by_role("button", name="Cancel").click()
    assert emails.counts()[State.DEAD] == 7
    page.get_by_role("button", name="Redrive all that match").click()
    page.get_by_role("button", name="Redrive 3").click()
    expect(page.locator(".toast")).to_have_text("3 ready again")
    assert (emails.counts()[State.DEAD], emails.counts()[State.READY]) == (4, 3)


def test_removing_asks_says_how_many_and_takes_the_chosen(emails: pabal.Queue, open_page: OpenPage) -> None:
    ids = [fail(emails, number, "why") for number in range(3)]
    page = open_page("#/queues/emails/dead")
    page.get_by_role("checkbox", name=ids[0]).check()
    page.get_by_role("checkbox", name=ids[2]).check()
    bulk = page.locator(".bulk")
    expect(bulk).to_contain_text("2 chosen")
    bulk.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("dialog")).to_contain_text("Remove 2 dead messages")
    page.get_by_role("button", name="Remove 2").click()
    expect(page.locator("table.messages tbody tr")).to_have_count(1)
    assert [entry.id for entry in emails.entries(State.DEAD)] == [ids[1]]


def test_remove_all_asks_and_does_nothing_if_it_is_refused(emails: pabal.Queue, open_page: OpenPage) -> None:
    emails.publish_many(range(4))
    page = open_page("#/queues/emails/ready")
    expect(page.locator("table.messages tbody tr")).to_have_count(4)
    for way in ("button", "key"):
        page.get_by_role("button", name="Remove all").click()
        expect(page.get_by_role("dialog")).to_contain_text("Remove 4 ready messages of emails for good?")
        if way == "button":
            page.get_by_role("button", name="Cancel", exact=True).click()
        else:
            page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.get_by_role("link", name="Delayed").click()  # and back: what it shows is new
        page.get_by_role("link", name="Ready").click()
        expect(page.locator("table.messages tbody tr")).to_have_count(4)
    assert emails.counts()[State.READY] == 4
    page.get_by_role("button", name="Remove all").click()
    page.get_by_role("button", name="Remove 4").click()
    expect(page.locator(".toast")).to_have_text("4 removed")
    assert emails.counts()[State.READY] == 0


def test_cancel_and_remove_of_one_message_ask(emails: pabal.Queue, open_page: OpenPage) -> None:
    dead = fail(emails, 1, "why")
    ready = emails.publish(2).id
    for id, act, label, gone in (
        (ready, "Cancel the message", "Cancel the message", "It is cancelled."),
        (dead, "Remove …", "Remove it", "It is removed."),
    ):
        page = open_page(f"#/queues/emails/message/{id}")
        page.get_by_role("button", name=act).click()
        expect(page.get_by_role("dialog")).to_contain_text("Are you sure?")
        page.get_by_role("button", name="Keep it").click()
        expect(page.get_by_role("dialog")).to_be_hidden()
        page.reload()
        expect(page.locator(".lead .tag")).to_have_text("ready" if id == ready else "dead")
        page.get_by_role("button", name=act).click()
        page.get_by_role("dialog").get_by_role("button", name=label).click()
        expect(page.locator(".toast")).to_have_text(gone)
    assert emails.counts()[State.READY] == 0 and emails.counts()[State.DEAD] == 0


def test_consumers_are_alive_or_only_lately_seen_and_a_message_names_its_holder(
    emails: pabal.Queue, open_page: OpenPage
) -> None:
    id = emails.publish(1).id
    holder = pabal.Queue("emails", emails.store, consumer="worker-7")
    holder.lease()
    page = open_page(f"#/queues/emails/message/{id}")
    expect(page.locator(".lead")).to_contain_text("is held by worker-7")
    hour = {"consumer": "gone", "host": None, "pid": None, "since": None, "seen": "2020-01-01T00:00:00Z"}
    held = [{"queue": "emails", "messages": 1, "since": "2020-01-01T00:00:00Z"}]

    def add(route: Route) -> None:
        answer = route.fetch()
        rows = [{**hour, "holds": []}, {**hour, "consumer": "stuck", "holds": held}, *answer.json()["consumers"]]
        route.fulfill(response=answer, json={"consumers": rows})

    page.route("**/consumers", add)
    page.get_by_role("link", name="Consumers").click()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("worker-7")
    assert [rows.nth(at).locator("td.is").inner_text().strip() for at in range(3)] == ["alive", "silent", "lately seen"]
    page.goto(f"{page.url.partition('#')[0]}#/queues/emails/message/{id}")
    expect(page.locator(".lead")).to_contain_text("is held by one of 2 consumers")


def test_a_message_is_sent_and_sent_again_with_a_change(emails: pabal.Queue, open_page: OpenPage) -> None:
    page = open_page("#/queues/emails/ready")
    page.get_by_role("button", name="Send a message").click()
    page.get_by_label("Body, as JSON").fill("{not json")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".toast.bad")).to_contain_text("not JSON")
    page.get_by_label("Body, as JSON").fill('{"to": "ben"}')
    page.get_by_text("More fields").click()
    page.locator("dialog [name=type]").fill("email.send")
    page.get_by_label("Priority").fill("5")
    page.get_by_label("Headers, one a line").fill("tenant: blue")
    page.get_by_role("button", name="Send", exact=True).click()
    page.locator("td.id a").click()
    expect(page.locator("table.fields")).to_contain_text("email.send")
    page.get_by_role("button", name="Edit a copy").click()
    page.get_by_label("Body, as JSON").fill('{"to": "cho"}')
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".toast", has_text="Sent as").first).to_be_visible()
    found = until(lambda: list(emails.entries(State.READY)) if emails.counts()[State.READY] == 2 else [])
    assert [(each.message.body, each.message.type, each.message.priority) for each in found if each.message] == [
        ({"to": "ben"}, "email.send", 5),
        ({"to": "cho"}, "email.send", 5),
    ]
    assert all(each.message.headers == {"tenant": "blue"} for each in found if each.message)


def test_a_copy_keeps_large_numbers_and_fields(emails: pabal.Queue, open_page: OpenPage) -> None:
    fail(emails, {"order": 9007199254740993, "price": 1.0}, "why", id="first", version=3, trace_id="t-1")
    page = open_page("#/queues/emails/message/first")
    expect(page.locator(".json")).to_contain_text("9007199254740993")
    page.get_by_role("button", name="Edit a copy").click()
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".toast", has_text="Sent as")).to_be_visible()
    [copy] = emails.entries(State.READY)
    assert copy.message is not None and copy.message.body == {"order": 9007199254740993, "price": 1.0}
    assert (copy.message.version, copy.message.trace_id) == (3, "t-1")


def test_json_in_a_text_is_shown_as_json_and_a_copy_stays_text(emails: pabal.Queue, open_page: OpenPage) -> None:
    sent = '{"order": 9007199254740993, "name": "\\uae40\\ubbfc\\uc544"}'
    emails.publish(sent, id="first")
    page = open_page("#/queues/emails/ready")
    expect(page.locator("td.glance")).to_contain_text('"name":"김민아"')
    page.locator("td.id a").click()
    expect(page.locator(".json")).to_contain_text('"name": "김민아"')
    expect(page.locator(".json")).to_contain_text("9007199254740993")
    page.get_by_role("button", name="Show the text").click()
    expect(page.locator("pre.body")).to_have_text(sent)
    expect(page.locator(".json")).to_be_hidden()
    page.get_by_role("button", name="Edit a copy").click()
    expect(page.get_by_label("Body, as text")).to_have_value(sent)
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".toast", has_text="Sent as")).to_be_visible()
    assert [each.message.body for each in emails.entries(State.READY) if each.message] == [sent, sent]


def test_a_body_is_sent_as_text_or_as_bytes(emails: pabal.Queue, open_page: OpenPage) -> None:
    page = open_page("#/queues/emails/ready")
    for kind, words in (("text", "{not json"), ("bytes, in base64", "AAH/")):
        page.get_by_role("button", name="Send a message").click()
        page.get_by_label("The body is").select_option(kind)
        page.get_by_label(f"Body, as {kind}").fill(words)
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.get_by_role("dialog")).to_be_hidden()
    until(lambda: emails.counts().get(State.READY, 0) == 2)
    assert [each.message.body for each in emails.entries(State.READY) if each.message] == ["{not json", b"\x00\x01\xff"]


def test_a_queue_is_paused_resumed_and_its_policy_changed(emails: pabal.Queue, open_page: OpenPage) -> None:
    page = open_page("#/queues/emails/ready")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    until(lambda: emails.paused)
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("button", name="Policy").click()
    page.get_by_label("Visibility timeout").fill("-4")
    page.evaluate("document.querySelector('dialog form').noValidate = true")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".toast.bad")).to_contain_text("visibilityTimeoutSec must be")
    page.get_by_label("Visibility timeout").fill("77")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".toast", has_text="Saved")).to_be_visible()
    until(lambda: emails.policy.visibility == 77)
    assert emails.policy.retry.limit == 1


def names_in(page: Page) -> set[str]:
    """Return the names of all inputs of the dialog."""
    return set(page.locator("dialog [name]").evaluate_all("all => all.map(one => one.name)"))


def test_the_forms_have_every_field(emails: pabal.Queue, open_page: OpenPage) -> None:
    page = open_page("#/queues/emails/ready")
    page.get_by_role("button", name="Policy").click()
    document = document_of(pabal.Policy())
    nested = {f"{part}.{name}" for part in ("retry", "dlq") for name in document[part]}
    expect(page.locator('[name="retry.limit"]')).to_be_visible()
    assert names_in(page) == nested | document.keys() - {"retry", "dlq"}
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Send a message").click()
    expect(page.get_by_label("The body is")).to_be_visible()
    assert names_in(page) == set(NewMessage.__struct_fields__)


def test_a_policy_moves_dead_messages_and_no_more_if_its_queue_is_cleared(
    emails: pabal.Queue, open_page: OpenPage
) -> None:
    page = open_page("#/queues/emails/ready")
    page.get_by_role("button", name="Policy").click()
    expect(page.get_by_label("Move failed messages")).to_be_disabled()
    page.get_by_role("textbox", name="Dead-letter queue").fill("graves")
    page.get_by_label("Move failed messages").check()
    page.get_by_text("More", exact=True).click()
    page.get_by_label("Poison limit").fill("3")
    page.get_by_label("JSON Schema").fill("{wrong")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".toast.bad")).to_contain_text("not JSON")
    page.get_by_label("JSON Schema").fill('{"type": "object"}')
    page.get_by_label("A body that does not fit").select_option("dead-letter")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    until(lambda: emails.read_policy().dead_letters.move)
    policy = emails.read_policy()
    assert policy.dead_letters.queue == "graves" and policy.retry.poison_limit == 3 and policy.retry.limit == 1
    assert policy.body_schema == {"type": "object"} and policy.on_invalid == "dead-letter"
    page.get_by_role("button", name="Policy").click()
    page.get_by_role("textbox", name="Dead-letter queue").fill("")
    page.get_by_text("More", exact=True).click()
    page.get_by_label("JSON Schema").fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    until(lambda: not emails.read_policy().dead_letters.move)
    assert emails.read_policy().dead_letters.queue == "" and emails.read_policy().body_schema is None


def test_a_message_is_sent_with_every_field(emails: pabal.Queue, open_page: OpenPage) -> None:
    page = open_page("#/queues/emails/ready")
    page.get_by_role("button", name="Send a message").click()
    page.get_by_label("Body, as JSON").fill("1")
    page.get_by_text("More fields").click()
    for name, words in (("version", "3"), ("sender", "ann"), ("reply_to", "answers"), ("trace_id", "t-1")):
        page.locator(f"dialog [name={name}]").fill(words)
    page.get_by_label("Unique key").fill("u-1")
    page.locator("dialog [name=at]").fill("2099-01-02T03:04")
    page.get_by_label("Attributes").fill('{"n": [1]}')
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    [entry] = until(lambda: list(emails.entries(State.DELAYED)))
    message = entry.message
    assert message is not None and (message.version, message.sender, message.unique) == (3, "ann", "u-1")
    assert (message.reply_to, message.trace_id, message.attributes) == ("answers", "t-1", {"n": [1]})
    assert abs(entry.due_at - datetime(2099, 1, 2, 3, 4).timestamp()) < 1


def test_a_queue_is_deleted_only_if_its_name_is_typed(
    emails: pabal.Queue, mq: pabal.Connection, open_page: OpenPage
) -> None:
    emails.publish(1)
    page = open_page("#/queues/emails/ready")
    expect(page.locator("table.messages tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Delete queue").click()
    expect(page.get_by_role("dialog")).to_contain_text("1 message, removed")
    page.get_by_label("Name of the queue").fill("email")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator(".toast.bad")).to_contain_text("nothing was deleted")
    assert mq.queues() == ["emails"]
    page.get_by_role("button", name="Delete queue").click()
    page.get_by_label("Name of the queue").fill("emails")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("No queues yet")).to_be_visible()
    assert mq.queues() == []


def test_hostile_bodies_are_shown_as_text(emails: pabal.Queue, open_page: OpenPage) -> None:
    hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    emails.publish({"html": hostile, hostile: 1, "bidi": "abc\u202edef"}, id="h1", type=hostile, headers={"x": hostile})
    emails.publish(b"\x00\x01\xffbytes", id="h2")
    emails.publish("x" * 900_000, id="h3")
    deep: object = 1
    for _ in range(60):
        deep = [deep]
    emails.publish(deep, id="h4")
    page = open_page("#/queues/emails/ready")
    expect(page.locator("table.messages tbody tr")).to_have_count(4)
    for id, words in (("h1", "onerror"), ("h2", "00 01 ff"), ("h3", "xxxx"), ("h4", "1 item")):
        page.goto(f"{page.url.partition('#')[0]}#/queues/emails/message/{id}")
        expect(page.locator("section")).to_contain_text(words)
    page.goto(f"{page.url.partition('#')[0]}#/queues/emails/message/h1")
    expect(page.locator("section")).to_contain_text("abc\\u202edef")
    assert "owned" not in page.title() and page.locator("section img, section script").count() == 0
    answer = page.request.get(page.url.partition("#")[0])
    assert "script-src 'self'" in answer.headers["content-security-policy"]


def test_text_that_nobody_would_see_is_shown(emails: pabal.Queue, open_page: OpenPage) -> None:
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "no")
    emails.publish({"text": f"pay{hidden}"}, id="h1", type="a\u061cb", headers={"x": "soft\u00adhyphen"})
    page = open_page("#/queues/emails/message/h1")
    for words in ("pay\\U000e006e\\U000e006f", "a\\u061cb", "soft\\u00adhyphen"):
        expect(page.locator("section")).to_contain_text(words)


def test_figures_are_live_and_a_stop_is_shown_and_healed(
    emails: pabal.Queue, shown: Running, open_page: OpenPage
) -> None:
    page = open_page()
    row = page.get_by_role("row", name=re.compile("emails"))
    expect(page.locator("#live-text")).to_have_text("live")
    emails.publish_many(range(1234))
    expect(row).to_contain_text("1,234")
    shown.kill()
    expect(page.locator("#banner")).to_contain_text("does not answer")
    shown.start()  # with another token, so the cookie of this browser is worth nothing
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto(shown.dashboard)
    expect(row).to_contain_text("1,234")


def test_consumers_schedules_and_a_narrow_dark_screen(
    emails: pabal.Queue, mq: pabal.Connection, open_page: OpenPage
) -> None:
    emails.publish(1)
    emails.lease()
    mq.schedule("morning", every=3600, queue="reports")
    page = open_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page.get_by_role("link", name="Consumers").click()
    expect(page.get_by_role("table")).to_contain_text("1 of emails")
    page.get_by_role("link", name="Schedules").click()
    expect(page.get_by_role("row", name=re.compile("morning"))).to_contain_text("every 1h")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_content_has_the_focus_after_the_skip_link_and_after_each_way(
    emails: pabal.Queue, open_page: OpenPage
) -> None:
    id = emails.publish({"a": 1}).id
    page = open_page("#/queues/emails/ready")
    expect(page.get_by_role("link", name=id)).to_be_visible()
    page.reload()  # the page begins with it
    expect(page.get_by_role("link", name=id)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#page")).to_be_focused()
    assert page.url.endswith("#/queues/emails/ready")
    for name, title in ((id, id), ("Consumers", "Consumers")):
        page.get_by_role("link", name=name).focus()
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text(title)
        expect(page.locator("#page")).to_be_focused()


def test_keyboard_alone_reaches_a_message(emails: pabal.Queue, open_page: OpenPage) -> None:
    id = emails.publish({"a": 1}).id
    page = open_page()
    expect(page.get_by_role("link", name="emails")).to_be_visible()
    for wanted in ("emails", id):
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == wanted:
                break
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text(wanted)
