// The list of rooms, by their last activity, with what is unread, and who is signed in.

import { $, arrange, el, mark, soon } from "./dom.js";
import { agoOf, languageOf } from "./format.js";
import { systemEvent } from "./people.js";

export class Sidebar {
  #chat;
  #choose;
  #rows = new Map();

  constructor(chat, choose) {
    this.#chat = chat;
    this.#choose = choose;
    const draw = soon(() => this.#draw());
    chat.addEventListener("rooms", draw);
    chat.addEventListener("people", draw);
    chat.addEventListener("link", () => this.#link());
    $("rooms").onkeydown = (event) => this.#walk(event);
    $("me-mark").replaceChildren(mark("person", chat.user.id, chat.user.email));
    $("me-email").textContent = chat.user.email;
    this.#draw();
    this.#link();
  }

  #draw() {
    const rooms = this.#chat.sorted;
    arrange($("rooms"), rooms.map((room) => this.#row(room)));
    $("no-rooms").hidden = !this.#chat.ready || rooms.length > 0;
    const unread = rooms.reduce((sum, room) => sum + (room === this.#chat.current ? 0 : room.unread), 0);
    document.title = unread ? `(${unread}) Pabal chat` : "Pabal chat";
  }

  #row(room) {
    const current = room === this.#chat.current;
    const preview = this.#preview(room);
    const face = JSON.stringify([room.name, current, room.unread, room.activeAt, preview]);
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
    badge.setAttribute("aria-label", `${unread} unread`);
    return [
      mark("place", room.id, room.name),
      el("span.room-name", { lang: languageOf(room.name) }, room.name),
      el("time.room-time", {}, agoOf(room.activeAt)),
      el("span.room-last", { lang: languageOf(preview) }, preview),
      badge,
    ];
  }

  #preview(room) {
    const message = room.lastMessage;
    if (!message) return "No messages yet";
    if (message.type === "SYSTEM") {
      const { event, email } = systemEvent(message);
      return email ? `${email.split("@")[0]} ${event}` : "";
    }
    const text = message.type === "IMAGE" ? "Image" : message.content;
    if (message.senderId === this.#chat.user.id) return `You: ${text}`;
    const { people } = this.#chat;
    return people.get(message.senderId) ? `${people.nameOf(message.senderId)}: ${text}` : text;
  }

  #link() {
    $("link").dataset.linked = this.#chat.linked;
    $("link-words").textContent = this.#chat.linked ? "Connected" : "Connecting";
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
