// Why messages are dead: the reason that the consumer gave before the limit that it reached, and how many have the same.

import { get, queuePath } from "./api.js";
import { el, fill } from "./dom.js";
import { count, visible } from "./format.js";

const LIMIT = /^(attempt \d+ of \d+|\d+ times in a row): ([A-Z_]+)(?:: (.*))?$/s;
const MOST_SLICES = 10;
const MOST_SHOWN = 8;
const MOST_LETTERS = 80;

// The reason of a failure, what is to be said in small letters beside it, and the text that finds all with the same.
export function cause({ code, reason }) {
  const [, limit, first, own] = reason.match(LIMIT) ?? [];
  const words = limit ? (own ?? "") : reason;
  return { reason: words || first || code, about: [words || limit ? (first ?? code) : "", limit].filter(Boolean).join(", ") };
}

// A reason on one line: of a traceback, the last.
export function brief(reason) {
  const lines = reason.split("\n").map((line) => line.trim()).filter(Boolean);
  return (reason.startsWith("Traceback") ? lines.at(-1) : lines.join(" ")) ?? "";
}

export function causeView(failure, kind = "span") {
  const { reason, about } = cause(failure);
  return el(kind, {}, el("span.why", { title: reason.includes("\n") ? reason : null }, visible(brief(reason))), about ? el("small.about", {}, visible(about)) : null);
}

// The reasons of the dead messages of a queue, each with its count, as links that search for it.
export class Reasons {
  constructor(queue, search) {
    this.queue = queue;
    this.search = search;
    this.element = el("nav.reasons", { "aria-label": "Reasons", hidden: true });
  }

  async load() {
    const found = new Map();
    let after = "";
    for (let slices = 0; after !== null && slices < MOST_SLICES && (!slices || this.element.isConnected); slices += 1) {
      const page = await get(`${queuePath(this.queue, "reasons")}?${new URLSearchParams({ after })}`);
      for (const each of page.reasons) {
        const reason = brief(cause(each).reason);
        found.set(reason, (found.get(reason) ?? 0) + each.messages);
      }
      after = page.next;
    }
    this.draw(found, after === null);
  }

  draw(found, whole) {
    const sorted = [...found].sort(([, a], [, b]) => b - a);
    const rest = sorted.slice(MOST_SHOWN).reduce((sum, [, number]) => sum + number, 0);
    fill(
      this.element,
      sorted.slice(0, MOST_SHOWN).map(([reason, number]) => this.link(reason, number)),
      rest ? el("span.soft", {}, `${count(sorted.length - MOST_SHOWN)} other reasons: ${count(rest)}`) : null,
      whole ? null : el("span.soft", {}, `of the first ${count(sorted.reduce((sum, [, number]) => sum + number, 0))}`),
    );
    this.element.hidden = !sorted.length;
  }

  link(reason, number) {
    const base = `#/queues/${encodeURIComponent(this.queue)}/dead`;
    const words = [...reason];
    const text = words.slice(0, MOST_LETTERS).join("");
    const own = text === this.search;
    const href = own ? base : `${base}?search=${encodeURIComponent(text)}`;
    return el("a.reason", { href, title: own ? "Show all reasons" : reason, "aria-current": own ? "true" : null }, visible(`${text}${words.length > MOST_LETTERS ? " …" : ""}`), el("span.badge", {}, count(number)));
  }
}
