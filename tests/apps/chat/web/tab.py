"""A page of the chat in a real Chromium, used as a person does: by looking at it, typing and clicking."""

import json
import re
import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page, expect

from tests.apps.chat.running import Person


class Tab:
    """One tab. What must never happen on it is noted: errors of its code, and breaches of its content policy."""

    def __init__(self, context: BrowserContext, address: str, person: Person | None = None) -> None:
        self.context = context
        self.page: Page = context.new_page()
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", self._said)
        if person is not None:
            session = json.dumps(person.session)
            context.add_init_script(f"localStorage.setItem('pabal.chat.session', JSON.stringify({session}))")
        self.page.goto(address)
        if person is not None:
            self.linked()

    def _said(self, message: ConsoleMessage) -> None:
        if "Content Security" in message.text:
            self.wrong.append(message.text)

    def linked(self) -> None:
        expect(self.page.locator("#link-words")).to_have_text("Connected", timeout=20_000)

    def row(self, room: str) -> Locator:
        """Return the room of this name; the newest, if the test was run before."""
        return self.page.locator("#rooms button", has_text=room).first

    def enter(self, room: str) -> None:
        self.row(room).click()
        expect(self.page.locator("#loading")).to_be_hidden()

    def write(self, text: str) -> None:
        self.page.fill("#text", text)
        self.page.press("#text", "Enter")

    def message(self, text: str) -> Locator:
        return self.page.locator(".message", has_text=text)

    def stored(self, text: str) -> None:
        """Wait until a message is shown as stored."""
        expect(self.message(text)).to_have_attribute("data-state", "stored", timeout=20_000)
        expect(self.message(text)).to_have_attribute("data-sequence", re.compile("[0-9]+"), timeout=20_000)

    def shown(self) -> list[str]:
        """Return the texts that are shown, in their order."""
        return self.page.locator(".message .bubble").all_inner_texts()

    def until(self, true: Callable[[], object], seconds: float = 20.0) -> None:
        """Wait until something holds of what a route of this page has seen: routes run while the page is waited for."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "it never held"
            self.page.wait_for_timeout(20)

    def evaluate(self, expression: str) -> Any:
        return self.page.evaluate(expression)
