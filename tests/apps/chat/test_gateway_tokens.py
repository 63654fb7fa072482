"""Tokens, secrets and passwords."""

import asyncio
from pathlib import Path

import jwt
import pytest

from pabal.apps.chat.gateway.auth import Passwords, Tokens, make_secret, read_secret
from pabal.errors import InvalidInput, StoreMissing, UnsafeMode
from pabal.testing import ManualClock

SECRET = b"0123456789abcdef0123456789abcdef"


def test_a_login_speaks_for_its_user_until_it_ends() -> None:
    clock = ManualClock()
    tokens = Tokens(SECRET, clock, lifetime=60)
    token, ends = tokens.login("id", "ann@example.org", "session")
    found = tokens.read_login(token)
    assert found is not None and found.user_id == "id" and found.email == "ann@example.org"
    assert found.expires_at == ends == clock.now() + 60
    clock.advance(59)
    assert tokens.read_login(token) is not None
    clock.advance(1)
    assert tokens.read_login(token) is None


def test_a_token_of_another_secret_kind_or_algorithm_is_none() -> None:
    clock = ManualClock()
    tokens = Tokens(SECRET, clock)
    claims = {"sub": "id", "sid": "session", "email": "x", "aud": "pabal-chat", "exp": clock.now() + 60}
    assert tokens.read_login(jwt.encode(claims, SECRET, "HS256")) is not None
    bad = [
        Tokens(SECRET[::-1], clock).login("id", "x", "session")[0],
        tokens.invitation("id", "number")[0],
        jwt.encode(claims, SECRET * 2, "HS512"),
        jwt.encode(claims, "", "none"),  # what an attacker would send
        jwt.encode({**claims, "aud": "another"}, SECRET, "HS256"),
        jwt.encode({**claims, "sid": ""}, SECRET, "HS256"),  # no session, so nobody could end it
        "a.b.c",
        jwt.encode({name: claims[name] for name in ("sub", "aud")}, SECRET, "HS256"),
        jwt.encode({name: claims[name] for name in ("exp", "aud")}, SECRET, "HS256"),
        "",
        "\ud800",
    ]
    assert [tokens.read_login(token) for token in bad] == [None] * len(bad)


def test_an_invitation_is_for_one_room_and_no_login_is_one() -> None:
    clock = ManualClock()
    tokens = Tokens(SECRET, clock, invitation_lifetime=60)
    token, _ = tokens.invitation("room", "number")
    assert tokens.read_invitation(token) == ("room", "number")
    assert (
        tokens.read_invitation(tokens.login("room", "x", "session")[0]) is None and tokens.read_invitation(None) is None
    )
    clock.advance(60)
    assert tokens.read_invitation(token) is None


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 32 bytes; found 31"):
        Tokens(SECRET[:31], ManualClock())


def test_a_secret_lies_in_a_file_of_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "secret"
    with pytest.raises(StoreMissing):
        read_secret(path)
    make_secret(path)
    made = read_secret(path)
    assert len(made) >= 32 and path.stat().st_mode & 0o777 == 0o600
    make_secret(path)
    assert read_secret(path) == made
    path.chmod(0o640)
    with pytest.raises(UnsafeMode):
        read_secret(path)


def test_passwords_are_hashed_and_checked() -> None:
    async def play() -> None:
        passwords = Passwords(10)
        known = await passwords.hash("correct horse")
        assert known.startswith("$argon2id$")
        assert await passwords.matches(known, "correct horse")
        assert not await passwords.matches(known, "wrong horse")
        assert not await passwords.matches(None, "nobody's password")
        assert not await passwords.matches("no hash at all", "x")
        passwords.close()

    asyncio.run(play())
