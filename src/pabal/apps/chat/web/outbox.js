// What was written here and is not known to be stored yet: kept in localStorage, one key per message, so that neither a
// lost connection, a closed page nor a second tab loses or doubles it.
//
// Sent in the order of writing, one at a time, always with the clientMsgId it was born with: the gateway stores it once
// however often it is sent. A message is forgotten when it is seen stored, or when its writer discards it. One that
// ends the connection each time it is sent is set aside, so that it holds up no other.

import { NoAnswer } from "./socket.js";
import { errorWords, t } from "./text.js";

const PAUSE = 1000;
const CUTS = 5; // connections that ended while a message was sent, after which it is set aside
// What the gateway says when the same thing may be granted later.
export const BUSY = new Set(["TooOften", "Unavailable"]);

export class Outbox {
  #prefix;
  #send;
  #changed;
  #entries = new Map();
  #linked = false;
  #running = false;
  #order = 0;

  // `send(entry)` returns the gateway's answer or throws NoAnswer; `changed(roomId)` is told of every change.
  constructor(userId, send, changed) {
    this.#prefix = `pabal.chat.unsent.${userId}.`;
    this.#send = send;
    this.#changed = changed;
    for (const key of Object.keys(localStorage)) {
      if (!key.startsWith(this.#prefix)) continue;
      const entry = JSON.parse(localStorage.getItem(key));
      this.#entries.set(entry.clientMsgId, entry);
    }
  }

  of(roomId) {
    return this.#sorted().filter((entry) => entry.roomId === roomId);
  }

  add(roomId, type, content) {
    const at = Date.now();
    this.#order = Math.max(at * 1000, this.#order + 1);
    const fresh = { clientMsgId: newId(), at, order: this.#order, state: "sending", reason: "", cuts: 0 };
    this.#keep({ ...fresh, roomId, type, content: wellFormed(content) });
    this.#run();
  }

  // A connection is there: whatever is not known to be stored is sent again.
  up() {
    this.#linked = true;
    for (const entry of this.#sorted()) if (entry.state === "accepted") this.#keep({ ...entry, state: "sending" });
    this.#run();
  }

  down() {
    this.#linked = false;
  }

  // It is stored, though it was not seen in its room yet: it stays to be shown, and is not sent again.
  confirmed(clientMsgId) {
    const entry = this.#entries.get(clientMsgId);
    if (entry) this.#keep({ ...entry, state: "stored" });
  }

  // It was seen in its room.
  stored(clientMsgId) {
    this.#forget(clientMsgId);
  }

  rejected(clientMsgId, reason) {
    const entry = this.#entries.get(clientMsgId);
    if (entry) this.#keep({ ...entry, state: "rejected", reason });
  }

  resend(clientMsgId) {
    const entry = this.#entries.get(clientMsgId);
    if (entry) this.#keep({ ...entry, state: "sending", reason: "", cuts: 0, content: wellFormed(entry.content) });
    this.#run();
  }

  discard(clientMsgId) {
    this.#forget(clientMsgId);
  }

  async #run() {
    if (this.#running) return;
    this.#running = true;
    try {
      while (this.#linked) {
        const next = this.#sorted().find((entry) => entry.state === "sending");
        if (!next) return;
        await this.#try(next);
      }
    } finally {
      this.#running = false;
    }
  }

  async #try(entry) {
    let answer;
    try {
      answer = await this.#send(entry);
    } catch (failure) {
      if (!(failure instanceof NoAnswer)) throw failure;
      if (failure.cut) this.#cut(entry.clientMsgId);
      return pause(PAUSE);
    }
    const current = this.#entries.get(entry.clientMsgId);
    if (!current || current.state === "stored") return; // stored before its answer came
    if (answer.status === "ACCEPTED") this.#keep({ ...current, state: "accepted" });
    else if (BUSY.has(answer.error?.code)) await pause(PAUSE);
    else this.rejected(entry.clientMsgId, errorWords(answer.error) ?? t("notTaken"));
  }

  // The connection ended as soon as a message was sent.
  #cut(clientMsgId) {
    const entry = this.#entries.get(clientMsgId);
    if (entry?.state !== "sending") return;
    const cuts = (entry.cuts ?? 0) + 1;
    if (cuts >= CUTS) this.#keep({ ...entry, cuts, state: "rejected", reason: t("setAside") });
    else this.#keep({ ...entry, cuts });
  }

  #sorted() {
    return [...this.#entries.values()].sort((one, other) => one.order - other.order);
  }

  #keep(entry) {
    this.#entries.set(entry.clientMsgId, entry);
    try {
      if (entry.state === "stored") localStorage.removeItem(this.#prefix + entry.clientMsgId);
      else localStorage.setItem(this.#prefix + entry.clientMsgId, JSON.stringify(entry));
    } catch {
      // No room left there: it is still sent while this page is open.
    }
    this.#changed(entry.roomId);
  }

  #forget(clientMsgId) {
    const entry = this.#entries.get(clientMsgId);
    if (!entry) return;
    this.#entries.delete(clientMsgId);
    localStorage.removeItem(this.#prefix + clientMsgId);
    this.#changed(entry.roomId);
  }
}

// Text without halves of characters, which a gateway cannot take.
export function wellFormed(text) {
  return text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}

export const pause = (time) => new Promise((resolve) => setTimeout(resolve, time));

// A random UUID; crypto.randomUUID is missing where the page comes over plain HTTP from another machine.
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
