// A search in every queue and state: for the messages of a thread, and for all that mention something.

import { get, queuePath } from "./api.js";
import { bodyGlance } from "./body.js";
import { el, fill } from "./dom.js";
import { ago, count, visible } from "./format.js";
import { causeView } from "./reasons.js";

const STATES = ["dead", "ready", "inflight", "delayed", "corrupt", "done"];
const MOST = 200; // messages that are shown

export const searchLink = (text) => `#/search?search=${encodeURIComponent(text)}`;

export class SearchPage {
  constructor(text) {
    this.text = text;
    this.running = false;
    const box = el("input", { type: "search", value: text, placeholder: "Search id, thread, type, text, header, reason", "aria-label": "Search all queues" });
    const form = el("form.row", { role: "search", onsubmit: (event) => (event.preventDefault(), (location.hash = box.value ? searchLink(box.value) : "#/search")) }, box, el("button.primary", { type: "submit" }, "Search"));
    this.body = el("tbody");
    this.note = el("p.soft", { role: "status" }, "Looks into every queue, without taking anything.");
    this.stop = el("button", { type: "button", hidden: true, onclick: () => (this.running = false) }, "Stop");
    this.table = el("table.messages", { hidden: true }, el("thead", {}, el("tr", {}, el("th", {}, "Queue"), el("th", {}, "State"), el("th", {}, "Message"), el("th", {}, "Type or reason"), el("th", {}, "Body"), el("th.number", {}, "Published"))), this.body);
    this.element = el("section", { "aria-label": "Search" });
    fill(this.element, el("div.row.head", {}, el("h1", {}, "Search")), form, el("div.row", {}, this.note, this.stop), el("div.scroll", {}, this.table));
    if (text) this.run();
  }

  show() {}

  async run() {
    this.running = true;
    this.stop.hidden = false;
    let found = 0;
    let looked = 0;
    try {
      const { queues } = await get("/queues");
      const places = queues.flatMap((queue) => STATES.filter((state) => queue[state]).map((state) => [queue.queue, state, queue[state]]));
      const total = places.reduce((sum, [, , number]) => sum + number, 0);
      for (const [queue, state, number] of places) {
        let after = "";
        let slices = 0;
        while (after !== null && this.running && found < MOST && this.element.isConnected) {
          const page = await get(`${queuePath(queue, "messages")}?${new URLSearchParams({ state, search: this.text, after, limit: 50 })}`);
          this.body.append(...page.messages.map((message) => this.row(queue, message)));
          found += page.messages.length;
          after = page.next;
          slices += 1;
          this.table.hidden = !found;
          this.note.textContent = `${count(found)} found; ${count(Math.min(total, looked + Math.min(number, slices * 500)))} of ${count(total)} messages searched …`;
        }
        looked += number;
      }
      const whole = this.running && found < MOST;
      this.note.textContent = whole ? (found ? `${count(found)} found in ${count(queues.length)} queues` : `Nothing in ${count(queues.length)} queues fits "${visible(this.text)}".`) : `${count(found)} found; not everything was searched.`;
    } catch (error) {
      this.note.textContent = error.message;
    } finally {
      this.running = false;
      this.stop.hidden = true;
    }
  }

  row(queue, message) {
    return el(
      "tr",
      {},
      el("td", {}, el("a", { href: `#/queues/${encodeURIComponent(queue)}/${message.state}` }, queue)),
      el("td", {}, message.state),
      el("td.id", {}, el("a", { href: `#/queues/${encodeURIComponent(queue)}/message/${encodeURIComponent(message.id)}` }, visible(message.id))),
      el("td", {}, message.failure ? causeView(message.failure) : visible(message.type ?? "")),
      el("td.glance", {}, bodyGlance(message)),
      el("td.number", { title: message.created_at ?? "" }, ago(message.created_at)),
    );
  }
}
