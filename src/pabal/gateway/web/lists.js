// Consumers and schedules.

import { get } from "./api.js";
import { el } from "./dom.js";
import { ago, count, span, visible } from "./format.js";

class List {
  constructor(title, heads, empty) {
    this.body = el("tbody");
    this.empty = el("p.empty", { hidden: true }, empty);
    this.table = el("table", {}, el("thead", {}, el("tr", {}, heads.map((head) => el("th", {}, head)))), this.body);
    this.element = el("section", { "aria-label": title }, el("div.row.head", {}, el("h1", {}, title)), el("div.scroll", {}, this.table), this.empty);
    this.show();
  }

  async show() {
    if (this.loading) return;
    this.loading = true;
    try {
      const rows = await this.rows();
      this.body.replaceChildren(...rows);
      this.empty.hidden = rows.length > 0;
      this.table.hidden = !rows.length;
    } catch (error) {
      this.empty.hidden = false;
      this.empty.textContent = error.message;
    } finally {
      this.loading = false;
    }
  }
}

// Seconds. A consumer that waits asks again after 60 at the latest, and is noted about once in 60.
const ALIVE = 150;

// Whether a consumer lives: the kind of its dot, and words.
function life(consumer) {
  if (Date.now() - Date.parse(consumer.seen) < ALIVE * 1000) return ["good", "alive"];
  return consumer.holds.length ? ["warn", "silent"] : ["", "lately seen"];
}

export class ConsumersPage extends List {
  constructor() {
    super("Consumers", ["Consumer", "Is", "Host", "Process", "Seen", "Holds"], "Nobody took messages in the last hour.");
  }

  async rows() {
    const found = (await get("/consumers")).consumers;
    const order = ["alive", "silent", "lately seen"];
    found.sort((a, b) => order.indexOf(life(a)[1]) - order.indexOf(life(b)[1])); // by name, as they come, inside each
    const is = ([kind, words]) => el("td.is", {}, el(`span.dot${kind ? `.${kind}` : ""}`), ` ${words}`);
    return found.map((each) => el("tr", {}, el("th", { scope: "row" }, visible(each.consumer ?? "not known")), is(life(each)), el("td", {}, visible(each.host ?? "")), el("td", {}, each.pid ?? ""), el("td", {}, ago(each.seen)), el("td", {}, each.holds.map((held) => el("div", {}, `${count(held.messages)} of `, el("a", { href: `#/queues/${encodeURIComponent(held.queue)}/inflight` }, held.queue), `, since ${ago(held.since)}`)))));
  }
}

export class SchedulesPage extends List {
  constructor() {
    super("Schedules", ["Name", "Queue", "Times", "If missed", "Next"], "No schedules. `pabal schedule add` makes one.");
  }

  async rows() {
    const found = (await get("/schedules")).schedules;
    return found.map((each) => el("tr", {}, el("th", { scope: "row" }, visible(each.name)), el("td", {}, el("a", { href: `#/queues/${encodeURIComponent(each.queue)}/ready` }, each.queue)), el("td", {}, each.cron ? `${each.cron} ${each.timezone ?? ""}` : `every ${span(each.every)}`), el("td", {}, each.catch_up === "once" ? "once, late" : "skipped"), el("td", { title: each.next ?? "" }, ago(each.next))));
  }
}
