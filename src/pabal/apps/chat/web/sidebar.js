// The list of rooms, by their last activity, with what is unread, and who is signed in.

import { $, arrange, distinctHues, el, mark, soon } from "./dom.js";
import { agoOf, languageOf } from "./format.js";
import { systemWords } from "./people.js";
import { t } from "./text.js";

export class Sidebar {
  #chat;
  #choose;
  #rows = new Map();
  #hues = new Map();

  constructor(chat, choose) {
    this.#chat = chat;
    this.#choose = choose;
    const draw = soon(() => this.#draw());
    chat.addEventListener("rooms", draw);
    chat.addEventListener("people", draw);
    chat.addEventListener("link", () => this.#link());
    $("rooms").onkeydown = (event) => this.#walk(event);
    document.addEventListener("visibilitychange", draw);
    this.#draw();
    this.#link();
  }

  #draw() {
    const { current, failed, ready, sorted: rooms, user } = this.#chat;
    const name = this.#chat.people.nameOf(user.id);
    $("me-mark").replaceChildren(mark("person", user.id, name));
    $("me-name").textContent = name;
    $("me-name").title = user.email;
    this.#hues = distinctHues(rooms);
    arrange($("rooms"), rooms.map((room) => this.#row(room)));
    $("no-rooms").hidden = !ready || rooms.length > 0;
    $("rooms-failed").hidden = ready || !failed;
    $("nothing-words").textContent = ready ? t("chooseRoom") : failed ? t("roomsFailed") : t("loadingRooms");
    $("nothing-more").textContent = !ready && failed ? t("roomsFailedMore") : "";
    // What is unread in the open room counts while nobody looks at it.
    const unread = rooms.reduce((sum, room) => sum + (room === current && !document.hidden ? 0 : room.unread), 0);
    document.title = unread ? `(${unread}) ${t("title")}` : t("title");
  }

  #row(room) {
    const current = room === this.#chat.current;
    const preview = this.#preview(room);
    const hue = this.#hues.get(room.id);
    const face = JSON.stringify([room.name, current, room.unread, room.activeAt, preview, hue]);
    const known = this.#rows.get(room.id);
    if (known?.face === face) return known.row;
    const row = known?.row ?? el("li", { data: { room: room.id } }, this.#button(room));
    row.firstChild.replaceChildren(...this.#inside(room, preview));
    row.firstChild.setAttribute("aria-current", current ? "true" : "false");
    this.#rows.set(room.id, { row, face });
    return row;
  }

  #button(room) {
    return el("button.room", { type: "button", onclick: () => this.#choose(room.id) });
  }

  #inside(room, preview) {
    const unread = room.unread;
    const badge = el("span.badge", { hidden: !unread }, unread > 99 ? "99+" : String(unread));
    badge.setAttribute("aria-label", t("unread", unread));
    return [
      mark("place", room.id, room.name, null, this.#hues.get(room.id)),
      el("span.room-name", { lang: languageOf(room.name) }, room.name),
      el("time.room-time", {}, agoOf(room.activeAt)),
      el("span.room-last", { lang: languageOf(preview) }, preview),
      badge,
    ];
  }

  #preview(room) {
    const message = room.lastMessage;
    if (!message) return t("noMessages");
    if (message.type === "SYSTEM") return systemWords(message);
    const text = message.type === "IMAGE" ? t("image") : message.content;
    if (message.senderId === this.#chat.user.id) return `${t("you")}: ${text}`;
    const { people } = this.#chat;
    return people.get(message.senderId) ? `${people.nameOf(message.senderId)}: ${text}` : text;
  }

  #link() {
    $("link").dataset.linked = this.#chat.linked;
    $("link-words").textContent = this.#chat.linked ? t("connected") : t("connecting");
  }

  #walk(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = [...$("rooms").querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement);
    buttons[(at + step + buttons.length) % buttons.length]?.focus();
  }
}
