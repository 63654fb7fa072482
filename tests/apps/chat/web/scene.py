"""A conversation to look at: three people, three languages, a picture, one who writes."""

from io import BytesIO

from PIL import Image, ImageDraw
from playwright.sync_api import expect

from tests.apps.chat.running import Person
from tests.apps.chat.web.conftest import OpenTab
from tests.apps.chat.web.tab import Tab

CONVERSATION = [
    ("ana", "The northern road is open again, the snow is gone."),
    ("kenji", "了解しました。地図は机の上に置いておきます。"),
    ("kenji", "The new bridge is on it: https://example.org/maps/north"),
    ("mina", "네, 내일 아침 여섯 시에 출발할게요. 편지는 모두 챙겼어요."),
    ("ana", "One more thing: the second courier needs a fresh seal.\nI leave it with the guard."),
    ("mina", "Taken care of."),
]
ELSEWHERE = {"Night watch": "All is quiet.", "お茶の時間": "三時に休みましょう", "한강 산책": "오늘 저녁 어때요?"}


def played(open_tab: OpenTab, cast: dict[str, Person], room: str, **options: object) -> Tab:
    """Return mina's page after the conversation, while kenji writes."""
    mina, kenji, ana = cast["mina"], cast["kenji"], cast["ana"]
    elsewhere = {} if mina.get("/rooms")["rooms"] else ELSEWHERE
    for other in elsewhere:
        mina.make_room(other, kenji)
    room_id = mina.make_room(room, kenji, ana)
    mina.post(f"/rooms/{room_id}/read", {"lastReadMessageId": mina.messages(room_id)[-1]["id"]})
    tabs = {"kenji": open_tab(kenji), "ana": open_tab(ana), "mina": open_tab(mina, **options)}
    for other, text in elsewhere.items():
        tabs["kenji"].enter(other)
        tabs["kenji"].write(text)
        tabs["kenji"].stored(text)
    for tab in tabs.values():
        tab.enter(room)
    for name, text in CONVERSATION:
        tabs[name].write(text)
        expect(tabs["mina"].message(text.partition("\n")[0])).to_have_attribute("data-state", "stored")
    view = {"name": "view.png", "mimeType": "image/png", "buffer": landscape()}
    tabs["kenji"].page.set_input_files("#file", view)  # type: ignore[arg-type]  # a FilePayload
    shown = tabs["mina"]
    expect(shown.page.locator(".picture img")).to_have_count(1)
    expect(shown.page.locator(".picture img")).not_to_have_js_property("naturalWidth", 0)
    tabs["ana"].context.close()
    expect(shown.page.locator("#presence")).to_have_text("3 members, 2 online")
    tabs["kenji"].page.locator("#text").press_sequentially("One moment, please", delay=200)
    expect(shown.page.locator("#typing")).to_contain_text("is typing")
    return shown


def landscape() -> bytes:
    image = Image.new("RGB", (640, 360), "#86abc4")
    draw = ImageDraw.Draw(image)
    draw.ellipse((470, 50, 545, 125), fill="#f3dfa2")
    draw.polygon([(0, 360), (230, 110), (420, 360)], fill="#4d6f60")
    draw.polygon([(260, 360), (450, 190), (640, 360)], fill="#3c594d")
    out = BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
