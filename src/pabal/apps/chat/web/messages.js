// The messages of the open room: by day, grouped by who wrote them, with what is not stored yet at the end.
//
// Elements are kept by message, so that a message that becomes stored, or history that comes above, moves nothing that
// the reader looks at.

import { $, arrange, el, icon, mark, soon } from "./dom.js";
import { dayOf, languageOf, linked, momentOf, timeOf } from "./format.js";
import { Images } from "./images.js";
import { systemWords } from "./people.js";
import { t } from "./text.js";

const NEAR = 48; // pixels from the end that count as being there
const AHEAD = 600; // pixels from the top where older messages are read
const TOGETHER = 5 * 60 * 1000;
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
  #found = 0; // the sequence of a message that was looked for
  #unshown = new Set(); // pictures that could not be fetched, as functions that try again
  #scroller = $("scroller");

  // `show(url)` opens a whole image.
  constructor(chat, images, show) {
    this.#chat = chat;
    this.#images = images;
    this.#show = show;
    this.draw = soon(() => this.#draw());
    for (const name of ["messages", "people"]) chat.addEventListener(name, this.draw);
    chat.addEventListener("link", () => this.#linked());
    chat.addEventListener("behind", ({ detail }) => this.#behind(detail));
    this.#scroller.onscroll = () => this.#scrolled();
    $("to-end").onclick = () => this.toEnd();
    document.addEventListener("visibilitychange", () => this.#see());
    const resized = new ResizeObserver(() => this.#atEnd && this.#placed && this.#stay());
    for (const element of [$("messages"), this.#scroller]) resized.observe(element);
  }

  open(room) {
    this.#room = room;
    this.#mark = room?.unread ? room.lastRead : Infinity;
    this.#begin();
  }

  async toEnd() {
    if (this.#room?.hasNewer) await this.#jump(null);
    this.#atEnd = true;
    this.draw();
    this.#stay();
    this.#see();
  }

  // Show a message that was looked for.
  toMessage(sequence) {
    return this.#jump(sequence);
  }

  #jump(sequence) {
    const room = this.#room;
    return this.#chat.jump(room, sequence, () => {
      if (room !== this.#room) return;
      this.#mark = Infinity;
      this.#begin(sequence ?? 0);
    });
  }

  #begin(found = 0) {
    this.#atEnd = true;
    this.#placed = false;
    this.#found = found;
    this.#kept.clear();
    this.#unshown.clear();
    $("messages").replaceChildren();
    this.#draw();
  }

  #linked() {
    this.draw();
    if (!this.#chat.linked) return;
    const again = [...this.#unshown];
    this.#unshown.clear();
    again.forEach((fetch) => fetch());
  }

  #behind(roomId) {
    if (roomId !== this.#room?.id) return;
    this.#mark = Math.min(this.#mark, this.#room.lastRead);
    this.#atEnd = false;
    this.draw();
  }

  #draw() {
    const room = this.#room;
    if (!room) return;
    if (this.#atEnd && this.#placed) room.trim();
    const reading = this.#reading();
    arrange($("messages"), this.#elements(room));
    $("older").hidden = !(room.loaded && room.hasOlder);
    $("loading").hidden = room.loaded;
    $("newer").hidden = !(room.loaded && room.hasNewer);
    const talked = room.messages.some((message) => message.type !== "SYSTEM") || this.#unsent(room).length > 0;
    $("empty-room").hidden = !room.loaded || room.hasOlder || talked;
    $("empty-title").textContent = t("emptyTitle", room.name);
    if (!room.loaded) return;
    if (!this.#placed) this.#place();
    else if (this.#atEnd) this.#stay();
    else this.#hold(reading);
    this.#scrolled();
  }

  // Put the reader at the first unread message, or at the end.
  #place() {
    this.#placed = true;
    const found = $("messages").querySelector(`[data-sequence="${this.#found}"]`);
    const fresh = $("messages").querySelector(".fresh");
    this.#stay();
    if (found) found.scrollIntoView({ block: "center" });
    else if (fresh) fresh.scrollIntoView({ block: "start" });
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
    const below = scrollHeight - scrollTop - clientHeight;
    if (this.#placed && below < AHEAD && this.#room?.hasNewer) this.#chat.newer(this.#room);
    this.#see();
    this.#offer();
  }

  #see() {
    if (this.#placed && this.#atEnd && !document.hidden && this.#room?.last) {
      this.#chat.seen(this.#room, this.#room.last);
    }
  }

  #offer() {
    $("to-end").hidden = this.#atEnd && !this.#room?.hasNewer;
    $("to-end-words").textContent = this.#room?.unread ? t("newCount", this.#room.unread) : t("newest");
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
    const items = this.#items(room);
    items.forEach((item, place) => {
      const day = dayOf(item.createdAt);
      if (!previous || dayOf(previous.createdAt) !== day) {
        previous = null;
        keep(`day ${day}`, day, () => el("li.day", {}, el("span", {}, day)));
      }
      if (item.sequence > this.#mark && !keys.has("fresh")) {
        previous = null;
        keep("fresh", "", () => el("li.fresh", {}, el("span", {}, t("fresh"))));
      }
      const together = previous !== null && follows(previous, item);
      // Time and ticks stand once, at the end of a group.
      const next = items[place + 1];
      const crosses = next && item.sequence <= this.#mark && next.sequence > this.#mark;
      const last = !next || crosses || !follows(item, next) || next.state !== item.state || dayOf(next.createdAt) !== day;
      keep(item.key, this.#face(item, together, last), () => this.#element(item, together, last));
      previous = item;
    });
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
    const unsent = room.hasNewer && !this.#atEnd ? [] : this.#unsent(room); // they stand at the end
    return [...stored, ...unsent.filter((item) => !present.has(item.key))];
  }

  #unsent(room) {
    const own = this.#chat.user.id;
    return this.#chat.outbox.of(room.id).map((entry) => ({
      ...entry,
      key: `${own} ${entry.clientMsgId}`,
      senderId: own,
      createdAt: new Date(entry.at).toISOString(),
    }));
  }

  // Whether a message waits for the connection, or was sent in vain: it can be discarded.
  #waits(item) {
    return item.state === "sending" && (!this.#chat.linked || item.cuts > 0);
  }

  #face(item, together, last) {
    const { name, email } = this.#chat.people.get(item.senderId) ?? {};
    const found = item.sequence === this.#found;
    return JSON.stringify([item.state, item.reason, item.sequence, together, last, this.#waits(item), name, email, found]);
  }

  #element(item, together, last) {
    if (item.type === "SYSTEM") return this.#notice(item);
    const own = item.senderId === this.#chat.user.id;
    const name = this.#chat.people.nameOf(item.senderId);
    const element = el(`li.message${own ? ".own" : ""}${together ? ".together" : ""}`, {
      data: { state: item.state || "stored", ...(item.sequence ? { sequence: item.sequence } : {}) },
    });
    if (item.sequence === this.#found) element.dataset.found = true;
    if (!own) element.append(mark("person", item.senderId, name));
    const email = this.#chat.people.get(item.senderId)?.email || null;
    const author = el(own || together ? "span.hidden" : "span.author", { title: email }, own ? t("you") : name);
    element.append(author, this.#body(item), this.#foot(item, own, last));
    if (item.state === "rejected" || this.#waits(item)) element.append(this.#mending(item));
    return element;
  }

  #notice(item) {
    const words = systemWords(item) || item.content;
    return el("li.notice", { data: { sequence: item.sequence }, title: momentOf(item.createdAt) }, words);
  }

  #body(item) {
    if (item.type === "IMAGE") return this.#picture(Images.idIn(item.content));
    const properties = { dir: "auto", lang: languageOf(item.content) };
    return el("div.bubble", properties, ...linked(item.content));
  }

  #picture(id) {
    const words = el("span.picture-words", {}, id ? t("image") : t("imageBroken"));
    const button = el("button.picture", { type: "button", "aria-label": t("showImage"), disabled: !id }, words);
    if (!id) return button;
    button.onclick = async () => this.#show(await this.#images.whole(id));
    const fetch = () =>
      this.#images.thumbnail(id).then(
        (url) => button.replaceChildren(el("img", { src: url, alt: "" })),
        (failure) => {
          words.textContent = failure.message;
          this.#unshown.add(fetch); // the next connection tries again
        },
      );
    fetch();
    return button;
  }

  #foot(item, own, last) {
    const kind = last ? "span.foot" : "span.foot.hidden";
    const time = el("time", { datetime: item.createdAt, title: momentOf(item.createdAt) }, timeOf(item.createdAt));
    if (!own) return el(kind, {}, time);
    const waiting = item.state === "sending" && !this.#chat.linked;
    const words = waiting ? t("waiting") : t(item.state);
    const state = el("span.state", { title: words }, icon(ICONS[item.state]), el("span.hidden", {}, words));
    return el(kind, {}, time, state);
  }

  #mending(item) {
    const { outbox } = this.#chat;
    const again = el("button.link", { type: "button", onclick: () => outbox.resend(item.clientMsgId) }, t("resend"));
    const drop = el("button.link", { type: "button", onclick: () => outbox.discard(item.clientMsgId) }, t("discard"));
    if (item.state !== "rejected") return el("div.rejection", {}, drop);
    return el("div.rejection", { role: "alert" }, el("span", {}, item.reason), again, drop);
  }
}

// Whether a message stands under the name of the one before it.
function follows(one, other) {
  if (one.type === "SYSTEM" || other.type === "SYSTEM" || one.senderId !== other.senderId) return false;
  return Date.parse(other.createdAt) - Date.parse(one.createdAt) < TOGETHER;
}
