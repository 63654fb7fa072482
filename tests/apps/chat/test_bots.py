"""The bots of examples/chat-bot answer, once, in rooms they were in before and in rooms they join."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.apps.chat import outside
from tests.apps.chat.gateways import Site, played, until

FOLDER = Path(__file__).parents[3] / "examples" / "chat-bot"


@pytest.mark.parametrize("language", ["python", "javascript"])
@played
async def test_a_bot_answers_once(embedded_site: Site, language: str, tmp_path: Path) -> None:
    command, env = [sys.executable, str(FOLDER / "bot.py")], dict(os.environ)
    if language == "javascript":
        if reason := outside.missing():
            pytest.skip(reason)
        command = ["node", str(FOLDER / "bot.mjs")]
        env["NODE_FROM"] = f"{outside.installed()}/"
    ann = embedded_site.person("ann")
    room, email = embedded_site.room(ann, open=True), f"bot-{uuid.uuid4().hex[:6]}@example.org"
    with embedded_site.gateway() as gateway:
        log = (tmp_path / "bot.log").open("wb")
        bot = subprocess.Popen([*command, gateway.address, email, "long enough"], stdout=log, stderr=log, env=env)
        try:
            await until(lambda: b"listening" in (tmp_path / "bot.log").read_bytes(), "the bot")
            user = embedded_site.ledger.user_by_email(email)
            assert user is not None
            async with ann.socket(gateway, room) as a:
                await a.send(room, "!echo 안녕")  # before it is a member
                await a.until_texts(1)
                async with _login(gateway.address, email) as http:
                    assert (await http.post(f"/rooms/{room}/join")).status_code == 200
                await until(lambda: "안녕" in a.texts, "an answer to what was said before")
                await a.send(room, "!echo again")
                await until(lambda: "again" in a.texts, "an answer")
                assert a.texts.count("안녕") == a.texts.count("again") == 1
        finally:
            bot.kill()
            bot.wait(60)
            log.close()


def _login(address: str, email: str):  # type: ignore[no-untyped-def]
    import httpx2

    token = httpx2.post(f"{address}/auth/login", json={"email": email, "password": "long enough"}).json()["accessToken"]
    return httpx2.AsyncClient(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=30)
