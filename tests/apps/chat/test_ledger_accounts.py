"""Names, sessions, invitations, owners, search and retention, in both databases."""

from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from pabal.apps.chat.errors import EmailTaken, NotMember, NotOwner, RegistrationClosed, RemovedFromRoom, UserNameTaken
from pabal.apps.chat.events import Kind
from pabal.apps.chat.ledger import Ledger, open_ledger
from pabal.apps.chat.ledger.names import checked_name, name_key
from pabal.errors import InvalidInput
from pabal.testing import ManualClock
from tests.apps.chat.place import created, people
from tests.waiting import until

if TYPE_CHECKING:
    pass

DAY = 86_400.0


LOOK_THE_SAME = [
    ("boss", "BOSS"),
    ("boss", "b o s s"),
    ("boss", "b.o.s.s"),
    ("boss", "b0ss"),
    ("boss", "bo5s"),
    ("modern", "modem"),
    ("vvilliam", "william"),
    # I, l, 1 and |
    ("Bill", "BiIl"),
    ("Bill", "BiI1"),
    ("Ian", "lan"),
    ("Ian", "1an"),
    ("Ian", "|an"),
    ("OLIVIA", "0LlVIA"),
    # Cyrillic
    ("boss", "b\u043ess"),
    ("Bob", "\u0412ob"),
    ("HOME", "\u041d\u041e\u041c\u0415"),
    ("Peter", "\u0420\u0435t\u0435r"),
    ("Kate", "\u049aate"),  # with a descender
    ("Ivan", "\u0406van"),
    ("Ivan", "\u04c0van"),
    # Greek, where a capital looks like another letter than its small one
    ("Nina", "\u039dina"),
    ("Mina", "\u039cina"),
    ("Hana", "\u0397ana"),
    ("Yuna", "\u03a5una"),
    ("Zoe", "\u0396oe"),
    ("BETA", "\u0392\u0395\u03a4\u0391"),
    ("oliver", "\u03bfliver"),
    ("vera", "\u03bdera"),
    # Armenian, Hebrew, Hangul letters
    ("ono", "\u0585n\u0585"),
    ("Sam", "\u054fam"),
    ("lol", "\u05dfol"),
    ("lol", "\u3163ol"),
    # other forms of Latin letters and digits
    ("ann", "\uff41\uff4e\uff4e"),  # full width
    ("ann", "\U0001d41a\U0001d427\U0001d427"),  # mathematical
    ("ann", "\u24d0\u24dd\u24dd"),  # in circles
    ("ann", "\u1d00\u0274\u0274"),  # small capitals
    ("lol", "\u0142\u00f8\u0142"),  # strokes
    ("dog", "\u0256og"),  # a hook
    ("mina 2", "mina \u0662"),  # an Arabic digit
    ("mina 2", "mina \u00b2"),
    ("ijs", "\u0133s"),
    # accents, in one character, alone, several, and as an overlay
    ("boss", "b\u00f3ss"),
    ("boss", "bo\u0301ss"),
    ("boss", "bo\u0301\u0323ss"),
    ("boss", "bo\u0338ss"),
    ("boss", "\u0301boss"),
    # Korean, Japanese
    ("\uae40\ucca0\uc218", "\uae40 \ucca0\uc218"),
    ("\uae40", "\u1100\u1175\u11b7"),  # in parts
    ("\u304c\u304f", "\u304b\u3099\u304f"),
    ("\u30ac\u30af", "\uff76\uff9e\uff78"),  # half width
    ("\u30ed\u30cb", "\u53e3\u4e8c"),  # Katakana, Chinese
    ("\u845b", "\u845b\U000e0100"),  # a variant of the letter
]


@pytest.mark.parametrize(("one", "other"), LOOK_THE_SAME, ids=[ascii(pair) for pair in LOOK_THE_SAME])
def test_names_that_look_the_same_are_the_same(one: str, other: str) -> None:
    assert name_key(checked_name(one)) == name_key(checked_name(other))


def test_names_that_differ_differ() -> None:
    names = ["ann", "anna", "김철수", "김철호", "がく", "かく", "Ærø", "mina-2", "mina-3", "Nina", "Vina", "Mina"]
    names += ["राम", "रमा", "ที", "ทา", "佐々木", "佐木", "Νίκος", "Мария", "Марина", "علي", "עלי"]
    assert len({name_key(checked_name(name)) for name in names}) == len(names)
    assert checked_name("  김 \t철수 ") == "김 철수" and checked_name("José 🦊") == "José 🦊"


@pytest.mark.parametrize(
    "wrong",
    ["", "   ", "x" * 41, "a\u202eb", "a\u200bb", "a\x07b", "a\nb\x00", "ann@x.org", "ann\uff20x.org", "...", "\u3164"]
    + ["a\ud83d", "\u2066ann\u2069", "a\u034fb", "a\u00adb", "\ue000", "🦊", "bo" + 4 * "\u0301" + "ss"]
    + ["\u13aann", "\ua4eenn", "\u2c80nn", "\U00010300nn"],  # Cherokee, Lisu, Coptic, Old Italic
    ids=ascii,
)
def test_what_is_no_name_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidInput):
        checked_name(wrong)


def test_nobody_gets_the_name_of_another(ledger: Ledger) -> None:
    boss = ledger.add_user("boss@company.example", "hash")
    evil = ledger.add_user("boss@evil.example", "hash")
    assert boss.name == "boss" and evil.name != "boss" and evil.name.startswith("boss ")
    with pytest.raises(UserNameTaken):
        ledger.add_user("third@evil.example", "hash", "Bоss")
    with pytest.raises(EmailTaken):
        ledger.add_user("BOSS@company.example", "hash", "Somebody else")
    with pytest.raises(UserNameTaken):
        ledger.rename_user(evil.id, "b0ss")
    ledger.rename_user(evil.id, "Eve")
    ledger.rename_user(evil.id, "EVE")  # the own name may be written in another way
    found = ledger.user(evil.id)
    assert found is not None and found.name == "EVE"
    ledger.registration_open(False)
    with pytest.raises(RegistrationClosed):
        ledger.register("late@example.org", "hash")
    assert not ledger.is_registration_open()
    ledger.registration_open(True)
    assert ledger.register("late@example.org", "hash").name == "late"


def test_sessions_end_one_by_one_and_all_at_once(ledger: Ledger, clock: ManualClock) -> None:
    who = people(ledger)
    ids = []
    for number in range(3):
        clock.advance(1)
        ids.append(ledger.open_session(who.ann, lifetime=DAY, address="127.0.0.1", agent=f"browser {number}").id)
    assert [found.id for found in ledger.sessions_of(who.ann)] == ids[::-1]
    assert not ledger.end_session(who.bob, ids[0]) and ledger.end_session(who.ann, ids[0])
    assert ledger.live_sessions(ids) == set(ids[1:]) and ledger.live_sessions([]) == set()
    clock.advance(DAY - 10)
    assert ledger.renew_session(ids[1], lifetime=DAY) and not ledger.renew_session(ids[0], lifetime=DAY)
    clock.advance(60)
    assert [found.id for found in ledger.sessions_of(who.ann)] == [ids[1]]
    last = ledger.open_session(who.ann, lifetime=DAY, address="", agent="").id
    assert ledger.set_password(who.ann, "other", keep=last) == [ids[1]] and ledger.live_sessions([last])


def test_an_owner_renames_and_removes_and_is_followed_by_the_oldest_member(ledger: Ledger, clock: ManualClock) -> None:
    who = people(ledger)
    clock.advance(1)
    ledger.join(who.room, who.eve)
    given = ledger.invite(who.room, who.bob, lifetime=DAY)
    found = ledger.invitation(given)
    assert found is not None and (found.room_name, found.inviter_name) == ("one", "bob")
    assert [one.id for one in ledger.invitations_to(who.room)] == [given]
    with pytest.raises(NotOwner):
        ledger.rename_room(who.room, who.bob, "mine")
    ledger.rename_room(who.room, who.ann, "two")
    room = ledger.room(who.room)
    assert room is not None and (room.name, room.owner_id) == ("two", who.ann)
    with pytest.raises(NotMember):
        ledger.remove_member(who.room, who.ann, who.ann)
    ledger.persist([created(who.room, who.bob, "before")])
    ledger.remove_member(who.room, who.ann, who.bob)
    assert not ledger.is_member(who.room, who.bob) and ledger.invitation(given) is None
    known = {one.user_id: one for one in ledger.known_in(who.room, [who.ann, who.bob, who.eve])}
    assert known[who.bob].name == "bob" and not known[who.bob].member and known[who.eve].member
    ledger.leave(who.room, who.ann)
    room = ledger.room(who.room)
    assert room is not None and room.owner_id == who.eve
    assert [one.user_id for one in ledger.known_in(who.room, [who.ann])] == []  # was there, and wrote nothing


def newest(ledger: Ledger, room: str) -> datetime:
    """Return when the newest invitation to a room was made, by the clock that counts."""
    return ledger.invitations_to(room)[0].created_at


@pytest.mark.parametrize("open", [False, True])
def test_a_member_who_was_removed_comes_back_only_by_a_new_invitation_of_the_owner(
    ledger: Ledger, clock: ManualClock, open: bool
) -> None:
    who = people(ledger)
    room = ledger.create_room("two", who.ann, open=open).id
    ledger.join(room, who.bob)
    ledger.join(room, who.eve)
    old = ledger.invite(room, who.ann, lifetime=DAY)
    clock.advance(1)
    until(lambda: ledger.invite(who.room, who.ann, lifetime=DAY) and newest(ledger, who.room) > newest(ledger, room))
    ledger.remove_member(room, who.ann, who.bob)
    others, elsewhere = ledger.invite(room, who.eve, lifetime=DAY), ledger.invite(who.room, who.ann, lifetime=DAY)
    for invitation in (None, old, others, elsewhere, "", "no such"):
        with pytest.raises(RemovedFromRoom):
            ledger.join(room, who.bob, invitation=invitation)
    assert not ledger.is_member(room, who.bob)
    assert ledger.join(room, who.bob, invitation=ledger.invite(room, who.ann, lifetime=DAY))
    ledger.leave(room, who.bob)  # whoever leaves is not removed
    assert ledger.join(room, who.bob, invitation=others)
    ledger.remove_member(room, who.ann, who.bob)
    ledger.leave(room, who.ann)
    assert ledger.join(room, who.bob, invitation=ledger.invite(room, who.eve, lifetime=DAY))  # the owner now


TEXTS = (
    "내일 회의실에서 만나요",
    "会議は三時からです",
    "The deployment is done",
    "カタカナのテスト",
    "Über den Wolken",
    "v2 배포 완료",
)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("회의", [0]),
        ("회의실", [0]),
        ("실", [0]),
        ("의회", []),
        ("会議", [1]),
        ("三時", [1]),
        ("議", [1]),
        ("deploy", [2]),
        ("DEPLOYMENT done", [2]),
        ("ployment", []),
        ("ｶﾀｶﾅ", [3]),
        ("über", [4]),
        ("배포 v2", [5]),
        ("배포 done", []),
        ("' & | ! :* \" ( )", []),
    ],
)
def test_search_finds_words_in_korean_japanese_and_latin(query: str, found: list[int]) -> None:
    from pabal.apps.chat.ledger.search import parts_of, terms_of

    def has(text: str) -> bool:
        terms = [term.text for term in terms_of(text)]
        parts = parts_of(query)
        return bool(parts) and all(
            any(
                terms[at : at + len(part) - 1] == part[:-1] and terms[at + len(part) - 1].startswith(part[-1])
                for at in range(len(terms) - len(part) + 1)
            )
            for part in parts
        )

    assert [number for number, text in enumerate(TEXTS) if has(text)] == found


def test_both_databases_find_the_same_and_only_in_the_room(ledger: Ledger) -> None:
    who = people(ledger)
    other = ledger.create_room("other", who.ann).id
    ledger.persist([created(who.room, who.ann, text) for text in TEXTS])
    ledger.persist([created(other, who.ann, "회의 elsewhere"), created(who.room, who.ann, "회의록")])
    cases = {"회의": [7, 1], "회의실": [1], "실": [1], "의회": [], "会議": [2], "deploy": [3], "ｶﾀｶﾅ": [4], "über": [5]}
    cases |= {"배포 v2": [6], "배포 done": [], "' & | ! :* \" ( )": [], "": []}
    for query, sequences in cases.items():
        assert [message.sequence for message in ledger.search(who.room, query)] == sequences, query
    assert [message.sequence for message in ledger.search(who.room, "회의", before=7, limit=1)] == [1]


def test_retention_deletes_old_messages_their_terms_and_their_images(db_url: str) -> None:
    import time

    ledger = open_ledger(db_url)
    try:
        who = people(ledger)
        images = ["a" * 64, "b" * 64]
        old = [
            created(who.room, who.ann, "옛날 이야기"),
            *(created(who.room, who.ann, i, kind=Kind.IMAGE) for i in images),
        ]
        ledger.persist(old)
        cut = max(message.created_at for message in ledger.messages(who.room)).timestamp() + 0.0015
        while time.time() < cut + 0.01:
            time.sleep(0.002)
        ledger.persist(
            [created(who.room, who.ann, images[1], kind=Kind.IMAGE), created(who.room, who.ann, "새 이야기")]
        )
        assert ledger.may_see_image(images[0], who.bob) and not ledger.may_see_image(images[0], who.eve)
        looked = ledger.expire(who.room, cut, dry=True)
        assert (looked.messages, looked.images) == (3, [images[0]]) and len(ledger.messages(who.room)) == 5
        assert ledger.expire(who.room, cut) == looked and ledger.expire(who.room, cut).messages == 0
        assert [message.sequence for message in ledger.messages(who.room)] == [4, 5]
        assert [message.sequence for message in ledger.search(who.room, "이야기")] == [5]
        assert not ledger.is_posted(images[0]) and ledger.is_posted(images[1])
        ledger.persist([created(who.room, who.ann, "다음 이야기")])
        assert [message.sequence for message in ledger.search(who.room, "이야기")] == [6, 5]
    finally:
        ledger.close()
