// The messages of the open room: by day, grouped by who wrote them, with what is not stored yet at the end.
//
// Elements are kept by message, so that a message that becomes stored, or history that comes above, moves nothing that
// the reader looks at.

import { $, arrange, el, icon, mark, soon } from "./dom.js";
import { dayOf, languageOf, linked, momentOf, timeOf } from "./format.js";
import { Images } from "./images.js";
import { systemEvent } from "./people.js";

const NEAR = 48; // pixels from the end that count as being there
const AHEAD = 600; // pixels from the top where older messages are read
const TOGETHER = 5 * 60 * 1000;
const STATES = { sending: "Sending", accepted: "Accepted", stored: "Stored", rejected: "Not sent" };
const ICONS = { sending: "clock", accepted: "tick", stored: "ticks", rejected: "alert" };

export class Messages {
  #chat;
  #images;
  #show;
  #room = null;
  #mark = 0; // the last sequence that was read when the room was opened
  #atEnd = true;
  #was = {}; // where the scroller was when last looked at
  #placed = false; // the reader has been put where reading begins
  #kept = new Map(); // key to {element, face}
  #scroller = $("scroller");

  // `show(url)` opens a whole image.
  constructor(chat, images, show) {
    this.#chat = chat;
    this.#images = images;
    this.#show = show;
    this.draw = soon(() => this.#draw());
    for (const name of ["messages", "people"]) chat.addEventListener(name, this.draw);
    chat.addEventListener("link", this.draw);
    this.#scroller.onscroll = () => this.#scrolled();
    $("to-end").onclick = () => this.toEnd();
    document.addEventListener("visibilitychange", () => this.#see());
    const resized = new ResizeObserver(() => this.#atEnd && this.#placed && this.#stay());
    for (const element of [$("messages"), this.#scroller]) resized.observe(element);
  }

  open(room) {
    this.#room = room;
    this.#mark = room?.unread ? room.lastRead : Infinity;
    this.#atEnd = true;
    this.#placed = false;
    this.#kept.clear();
    $("messages").replaceChildren();
    this.#draw();
  }

  toEnd() {
    this.#atEnd = true;
    this.#stay();
    this.#see();
  }

  #draw() {
    const room = this.#room;
    if (!room) return;
    if (this.#atEnd && this.#placed) room.trim();
    const reading = this.#reading();
    arrange($("messages"), this.#elements(room));
    $("older").hidden = !(room.loaded && room.hasOlder);
    $("loading").hidden = room.loaded;
    if (!room.loaded) return;
    if (!this.#placed) this.#place();
    else if (this.#atEnd) this.#stay();
    else this.#hold(reading);
    this.#scrolled();
  }

  // Put the reader at the first unread message, or at the end.
  #place() {
    this.#placed = true;
    const fresh = $("messages").querySelector(".fresh");
    this.#stay();
    if (fresh) fresh.scrollIntoView({ block: "start" });
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    this.#atEnd = scrollHeight - scrollTop - clientHeight < NEAR;
    this.#scrolled();
  }

  // The message at the top of the view, and where it stands.
  #reading() {
    const top = this.#scroller.getBoundingClientRect().top;
    const messages = [...$("messages").querySelectorAll("[data-sequence]")];
    const element = messages.find((child) => child.getBoundingClientRect().bottom > top);
    return element && { key: element.key, place: element.getBoundingClientRect().top };
  }

  // Keep what is read where it is while something comes above it.
  #hold(reading) {
    const element = this.#kept.get(reading?.key)?.element;
    if (element) this.#scroller.scrollTop += element.getBoundingClientRect().top - reading.place;
  }

  #stay() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    const near = scrollHeight - scrollTop - clientHeight < NEAR;
    // Whoever is at the end leaves it by scrolling up only, not by what grows or shrinks: a resize is followed.
    const up = scrollTop < this.#was.scrollTop;
    const resized = scrollHeight !== this.#was.scrollHeight || clientHeight !== this.#was.clientHeight;
    this.#atEnd = near || (this.#atEnd && (resized || !up));
    this.#was = { scrollTop, scrollHeight, clientHeight };
    if (this.#placed && scrollTop < AHEAD && this.#room?.hasOlder) this.#chat.older(this.#room);
    this.#see();
    this.#offer();
  }

  #see() {
    if (this.#placed && this.#atEnd && !document.hidden && this.#room?.last) {
      this.#chat.seen(this.#room, this.#room.last);
    }
  }

  #offer() {
    $("to-end").hidden = this.#atEnd;
    $("to-end-words").textContent = this.#room?.unread ? `${this.#room.unread} new` : "Newest";
  }

  #elements(room) {
    const wanted = [];
    const keys = new Set();
    const keep = (key, face, make) => {
      keys.add(key);
      const known = this.#kept.get(key);
      const element = known?.face === face ? known.element : make();
      if (known && known.element !== element) known.element.replaceWith(element);
      element.key = key;
      this.#kept.set(key, { element, face });
      wanted.push(element);
    };
    let previous = null;
    for (const item of this.#items(room)) {
      const day = dayOf(item.createdAt);
      if (!previous || dayOf(previous.createdAt) !== day) {
        previous = null;
        keep(`day ${day}`, day, () => el("li.day", {}, el("span", {}, day)));
      }
      if (item.sequence > this.#mark && !keys.has("fresh")) {
        previous = null;
        keep("fresh", "", () => el("li.fresh", {}, el("span", {}, "New")));
      }
      const together = previous !== null && follows(previous, item);
      keep(item.key, this.#face(item, together), () => this.#element(item, together));
      previous = item;
    }
    for (const key of this.#kept.keys()) if (!keys.has(key)) this.#kept.delete(key);
    return wanted;
  }

  #items(room) {
    const own = this.#chat.user.id;
    const stored = room.messages.map((message) => ({
      ...message,
      key: `${message.senderId} ${message.clientMsgId}`,
      state: message.senderId === own ? "stored" : "",
    }));
    const present = new Set(stored.map((item) => item.key));
    const unsent = this.#chat.outbox.of(room.id).map((entry) => ({
      ...entry,
      key: `${own} ${entry.clientMsgId}`,
      senderId: own,
      createdAt: new Date(entry.at).toISOString(),
    }));
    return [...stored, ...unsent.filter((item) => !present.has(item.key))];
  }

  #face(item, together) {
    const waiting = item.state === "sending" && !this.#chat.linked;
    const name = this.#chat.people.nameOf(item.senderId);
    return JSON.stringify([item.state, item.reason, item.sequence, together, waiting, name]);
  }

  #element(item, together) {
    if (item.type === "SYSTEM") return this.#notice(item);
    const own = item.senderId === this.#chat.user.id;
    const name = this.#chat.people.nameOf(item.senderId);
    const element = el(`li.message${own ? ".own" : ""}${together ? ".together" : ""}`, {
      data: { state: item.state || "stored", ...(item.sequence ? { sequence: item.sequence } : {}) },
    });
    if (!own) element.append(mark("person", item.senderId, name));
    const author = el(own || together ? "span.hidden" : "span.author", {}, own ? "You" : name);
    element.append(author, this.#body(item), this.#foot(item, own));
    if (item.state === "rejected") element.append(this.#mending(item));
    return element;
  }

  #notice(item) {
    const { event, email } = systemEvent(item);
    const words = email ? `${email} ${event} the room` : item.content;
    return el("li.notice", { data: { sequence: item.sequence }, title: momentOf(item.createdAt) }, words);
  }

  #body(item) {
    if (item.type === "IMAGE") return this.#picture(Images.idIn(item.content));
    const properties = { dir: "auto", lang: languageOf(item.content) };
    return el("div.bubble", properties, ...linked(item.content));
  }

  #picture(id) {
    const words = el("span.picture-words", {}, id ? "Image" : "An image that cannot be shown");
    const button = el("button.picture", { type: "button", "aria-label": "Show the image", disabled: !id }, words);
    if (!id) return button;
    button.onclick = async () => this.#show(await this.#images.whole(id));
    this.#images.thumbnail(id).then(
      (url) => button.replaceChildren(el("img", { src: url, alt: "" })),
      (failure) => (words.textContent = failure.message),
    );
    return button;
  }

  #foot(item, own) {
    const time = el("time", { datetime: item.createdAt, title: momentOf(item.createdAt) }, timeOf(item.createdAt));
    if (!own) return el("span.foot", {}, time);
    const waiting = item.state === "sending" && !this.#chat.linked;
    const words = waiting ? "Waiting for the connection" : STATES[item.state];
    const state = el("span.state", { title: words }, icon(ICONS[item.state]), el("span.hidden", {}, words));
    return el("span.foot", {}, time, state);
  }

  #mending(item) {
    const { outbox } = this.#chat;
    const again = el("button.link", { type: "button", onclick: () => outbox.resend(item.clientMsgId) }, "Resend");
    const drop = el("button.link", { type: "button", onclick: () => outbox.discard(item.clientMsgId) }, "Discard");
    return el("div.rejection", { role: "alert" }, el("span", {}, item.reason), again, drop);
  }
}

// Whether a message stands under the name of the one before it.
function follows(one, other) {
  if (one.type === "SYSTEM" || other.type === "SYSTEM" || one.senderId !== other.senderId) return false;
  return Date.parse(other.createdAt) - Date.parse(one.createdAt) < TOGETHER;
}
