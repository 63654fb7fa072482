// All queues: what needs attention comes first.

import { may, put, queuePath } from "./api.js";
import { dialog, el, sparkline, toast } from "./dom.js";
import { count, rate, span, visible } from "./format.js";
import { FirstNeeds } from "./people.js";

const COLUMNS = [
  ["ready", "Ready"],
  ["inflight", "In flight"],
  ["delayed", "Delayed"],
  ["dead", "Dead"],
];

export class Overview {
  constructor() {
    this.filter = "";
    this.people = new FirstNeeds();
    this.rows = new Map();
    this.body = el("tbody");
    const search = el("input", {
      type: "search",
      placeholder: "Find a queue",
      "aria-label": "Find a queue",
      oninput: (event) => {
        this.filter = event.target.value.toLowerCase();
        this.draw();
      },
    });
    this.empty = el("div.empty", { hidden: true });
    this.table = el(
      "table.queues",
      {},
      el("thead", {}, el("tr", {}, el("th", {}, "Queue"), COLUMNS.map(([, words]) => el("th.number", {}, words)), el("th.number.wide", {}, "Oldest"), el("th.number.wide", {}, "In"), el("th.number.wide", {}, "Out"), el("th.number.wide", { title: "Consumers that hold messages of it now" }, "Held by"), el("th.wide", {}, "Last hour"))),
      this.body,
    );
    this.element = el(
      "section",
      { "aria-label": "Queues" },
      el("div.row.head", {}, el("h1", {}, "Queues"), search, may("manage") ? el("button", { type: "button", onclick: create }, "New queue") : null),
      this.people.element,
      el("div.scroll", {}, this.table),
      this.empty,
    );
    this.queues = [];
  }

  show(figures) {
    this.queues = figures.queues;
    this.draw();
  }

  showPeople(people) {
    this.people.show(people);
  }

  draw() {
    const shown = this.queues
      .filter((queue) => queue.queue.toLowerCase().includes(this.filter))
      .sort((a, b) => severity(b) - severity(a) || a.queue.localeCompare(b.queue));
    this.table.hidden = !shown.length;
    this.empty.hidden = shown.length > 0;
    if (!this.queues.length) {
      this.empty.replaceChildren(
        el("h2", {}, "No queues yet"),
        el("p", {}, "The first message makes a queue. Make one with the button above and send a message in its page, or send from a shell:"),
        el("pre.body", {}, "pabal publish jobs '{\"hello\": \"world\"}'"),
      );
    }
    else if (!shown.length) this.empty.replaceChildren(el("p", {}, `No queue has "${visible(this.filter)}" in its name.`));
    const wanted = shown.map((queue) => this.row(queue));
    if (wanted.some((row, at) => this.body.children[at] !== row) || this.body.childElementCount !== wanted.length) this.body.replaceChildren(...wanted);
  }

  row(queue) {
    let row = this.rows.get(queue.queue);
    if (!row) {
      row = el("tr");
      this.rows.set(queue.queue, row);
    }
    const text = JSON.stringify(queue);
    if (row.dataset.shown === text) return row;
    row.dataset.shown = text;
    const link = (state) => `#/queues/${encodeURIComponent(queue.queue)}/${state}`;
    const [first] = COLUMNS.find(([state]) => queue[state]) ?? COLUMNS[0];
    const tag = ({ kind, words, state }) => (state ? el(`a.tag.${kind}`, { href: link(state) }, words) : el(`span.tag.${kind}`, {}, words));
    row.replaceChildren(
      el("th", { scope: "row" }, el("a", { href: link(first) }, queue.queue), queue.attention.map(tag), el("small.narrow", {}, glance(queue))),
      ...COLUMNS.map(([state]) => el("td.number", {}, queue[state] ? el("a", { href: link(state), class: state === "dead" ? "bad" : "" }, count(queue[state])) : el("span.zero", {}, "0"))),
      el("td.number.wide", {}, span(queue.oldest_ready_seconds)),
      el("td.number.wide", {}, rate(queue.in_rate)),
      el("td.number.wide", {}, rate(queue.out_rate)),
      el("td.number.wide", {}, queue.consumers ? count(queue.consumers) : el("span.zero", {}, "0")),
      el("td.wide", {}, sparkline(queue.line, `${queue.queue}: messages in and out of each minute of the last hour`)),
    );
    return row;
  }
}

// How much a queue needs attention, as `severity` of pabal/queues/overview.py: its worst trouble is the first.
const severity = (queue) => ({ bad: 2, warn: 1 })[queue.attention[0]?.kind] ?? 0;

// What the columns that a phone has no room for say.
function glance(queue) {
  const parts = [];
  if (queue.oldest_ready_seconds !== null) parts.push(`oldest ${span(queue.oldest_ready_seconds)}`);
  if (queue.in_rate) parts.push(`in ${rate(queue.in_rate)}`);
  if (queue.out_rate) parts.push(`out ${rate(queue.out_rate)}`);
  if (queue.consumers) parts.push(`held by ${count(queue.consumers)}`);
  return parts.join(" · ");
}

async function create() {
  const name = el("input", { name: "name", required: true, maxlength: 128, autocomplete: "off", placeholder: "jobs" });
  const answer = await dialog("New queue", [el("label", {}, "Name", name)], [
    { label: "Cancel", value: "" },
    { label: "Make the queue", value: "yes", kind: "primary" },
  ]);
  if (!answer) return;
  try {
    const made = await put(queuePath(name.value.trim()), undefined);
    toast(made.created ? `${name.value.trim()} is there` : `${name.value.trim()} was there already`);
    location.hash = `#/queues/${encodeURIComponent(name.value.trim())}/ready`;
  } catch (error) {
    toast(error.message, "bad");
  }
}
