// One message: all fields, why it failed, its body, and what can be done with it.

import { get, may, post, queuePath } from "./api.js";
import { bodyView, isWhole } from "./body.js";
import { dialog, el, fill, toast } from "./dom.js";
import { ago, size, visible } from "./format.js";
import { cause, causeView } from "./reasons.js";
import { askRedrive, askSendBack, movedFrom } from "./redrive.js";
import { searchLink } from "./search.js";
import { askSend } from "./send.js";

const WORDS = {
  ready: "waits for a consumer",
  delayed: "waits for its time",
  inflight: "is held by a consumer",
  dead: "failed for good",
  corrupt: "could not be read",
  done: "was handled",
};
const FIELDS = ["type", "version", "priority", "sender", "target", "group", "dedup_key", "unique", "thread_id", "trace_id", "reply_to", "created_at", "due_at", "expires_at"];

const KEPT = 10; // failures that are kept before the last
const REPLIES = ".replies";

export class MessagePage {
  constructor(queue, id) {
    this.queue = queue;
    this.id = id;
    this.queues = [];
    this.element = el("section", { "aria-label": `Message ${id}` }, el("p.soft", {}, "loading …"));
    this.load();
  }

  show(figures) {
    this.queues = figures.queues.map((each) => each.queue);
  }

  async load() {
    try {
      const message = await get(queuePath(this.queue, "messages", this.id));
      this.draw(message, await this.past(message));
    } catch (error) {
      this.element.replaceChildren(this.head(), el("p", {}, error.message));
    }
  }

  // What is known elsewhere: who holds it, why it was moved here, or the dead-letter queue to which it was moved.
  async past(message) {
    const source = movedFrom(message, this.queue);
    try {
      if (source) return { why: (await get(queuePath(source, "messages", message.headers["original-id"] ?? message.id))).failure };
      if (message.state === "inflight") return { holders: (await get("/consumers")).consumers.filter((each) => each.holds.some((held) => held.queue === this.queue)) };
      if (message.state === "done" && message.failure) return { letters: (await get(queuePath(this.queue))).policy?.dlq };
    } catch {
      // The record there is removed after a while; a key may not be allowed to see it.
    }
    return {};
  }

  head(state = "ready") {
    const base = `#/queues/${encodeURIComponent(this.queue)}`;
    return el("h1", {}, el("a", { href: "#/" }, "Queues"), " / ", el("a", { href: `${base}/${state}` }, this.queue), " / ", el("span.id", {}, visible(this.id)));
  }

  draw(message, { why, letters, holders } = {}) {
    const fields = FIELDS.filter((name) => message[name] !== null && message[name] !== "" && !(name === "version" && message[name] === 1));
    const rows = fields.map((name) => [name, /_at$/.test(name) ? `${message[name]} (${ago(message[name])})` : visible(String(message[name]))]);
    for (const [name, value] of Object.entries(message.headers ?? {})) rows.push([`header ${visible(name)}`, visible(value)]);
    const attributes = Object.keys(message.attributes ?? {}).length ? el("div", {}, el("h2", {}, "Attributes"), bodyView({ created_at: "", body: message.attributes })) : null;
    fill(
      this.element,
      el("div.row.head", {}, this.head(message.state)),
      el("p.lead", {}, el(`span.tag.${message.state === "dead" || message.state === "corrupt" ? "bad" : "plain"}`, {}, message.state), " It ", fate(message, letters, holders), `. Attempts: ${message.attempt}.`),
      moved(this.queue, message, why),
      message.failure ? failure(message.failure) : null,
      el("div.row", {}, this.actions(message)),
      message.failure?.before.length ? attempts(message) : null,
      el("h2", {}, `Body, ${size(message.body_bytes)}`),
      bodyView(message),
      attributes,
      related(this.queue, message),
      el("h2", {}, "Fields"),
      el("table.fields", {}, rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value)))),
    );
  }

  actions(message) {
    const act = (words, kind, work) => el(`button${kind}`, { type: "button", onclick: () => this.tried(work) }, words);
    const selection = { ids: [this.id] };
    const buttons = [];
    if (may("manage") && message.state === "dead") {
      buttons.push(act("Send it again (redrive)", ".primary", () => this.changed("redrive", selection, "It is ready again.")));
      buttons.push(act("Redrive to …", "", () => this.redriveTo(selection)));
    }
    const source = movedFrom(message, this.queue);
    if (may("manage") && message.state === "ready" && source) {
      buttons.push(act(`Send back to ${visible(source)}`, ".primary", () => this.sendBack(source)));
    }
    if (may("send") && message.created_at !== null && isWhole(message)) {
      buttons.push(act("Edit a copy and send it", "", async () => (await askSend(this.queue, message)) && this.load()));
    }
    if (message.body_bytes) {
      buttons.push(el("a.button", { href: queuePath(this.queue, "messages", this.id, "body"), download: "" }, "Download the body"));
    }
    if (may("manage") && ["ready", "delayed"].includes(message.state)) {
      buttons.push(act("Cancel the message …", ".danger", () => this.asked("Cancel this message? Nobody will get it.", "Cancel the message", "cancel", selection, "It is cancelled.")));
    }
    if (may("manage") && ["dead", "corrupt"].includes(message.state)) {
      buttons.push(act("Remove …", ".danger", () => this.asked("Remove this message for good? This cannot be undone.", "Remove it", "remove", { ...selection, state: message.state }, "It is removed.")));
    }
    return buttons;
  }

  async sendBack(to) {
    if (!(await askSendBack(this.queue, new Map([[to, 1]])))) return;
    const { ids, kept } = await post(queuePath(this.queue, "send-back"), { ids: [this.id], to });
    if (!ids.length) toast(kept[this.id] ?? "It does not wait any more.", "bad");
    else {
      toast(`It is ready again in ${to}.`);
      location.hash = `#/queues/${encodeURIComponent(to)}/ready`;
    }
    await this.load();
  }

  async redriveTo(selection) {
    const terms = await askRedrive(this.queue, this.queues, "this message", 1, { paced: false });
    if (!terms) return;
    const { ids, kept } = await post(queuePath(this.queue, "redrive"), { ...selection, ...terms });
    toast(ids.length ? `It is ready again${terms.to ? ` in ${terms.to}` : ""}.` : (kept[this.id] ?? "It is not dead any more."), ids.length ? "good" : "bad");
    if (ids.length && terms.to) location.hash = `#/queues/${encodeURIComponent(terms.to)}/message/${encodeURIComponent(this.id)}`;
    else await this.load();
  }

  async asked(question, label, verb, selection, words) {
    const answer = await dialog("Are you sure?", [el("p", {}, question)], [
      { label: "Keep it", value: "" },
      { label, value: "yes", kind: "danger" },
    ]);
    if (answer) await this.changed(verb, selection, words);
  }

  async changed(verb, selection, words) {
    const found = await post(queuePath(this.queue, verb), selection);
    toast(found.ids.length ? words : "Nothing was changed: it is in another state now, or its body does not fit the schema.", found.ids.length ? "good" : "bad");
    await this.load();
  }

  async tried(work) {
    try {
      await work();
    } catch (error) {
      toast(error.message, "bad");
    }
  }
}

// What became of it, in words after "It".
function fate(message, letters, holders = []) {
  if (holders.length === 1 && holders[0].consumer) return `is held by ${visible(holders[0].consumer)}`;
  if (holders.length > 1) return ["is held by one of ", el("a", { href: "#/consumers" }, `${holders.length} consumers`)];
  if (message.state !== "done" || !message.failure) return WORDS[message.state];
  if (message.failure.code === "CANCELLED") return "was cancelled";
  if (letters?.move) {
    const first = message.headers?.["original-id"] ?? message.id;
    const there = el("a", { href: `#/queues/${encodeURIComponent(letters.queue)}/ready?search=${encodeURIComponent(first)}` }, visible(letters.queue));
    return ["failed for good, and was moved to its dead-letter queue ", there];
  }
  return "failed for good, and its queue keeps no dead messages";
}

// From where a message was moved to its dead-letter queue, and why.
function moved(queue, message, why) {
  const source = movedFrom(message, queue);
  if (!source) return null;
  const words = el("p.lead", {}, "Moved here from ", el("a", { href: `#/queues/${encodeURIComponent(source)}/ready` }, visible(source)), why ? ", where it failed:" : ", where it failed. The record of why is no longer kept there.");
  return el("div", {}, words, why ? failure(why) : null);
}

function failure(found) {
  const { reason, about } = cause(found);
  const parts = [about, about.includes("attempt") ? "" : `attempt ${found.attempt}`, found.consumer && `by ${visible(found.consumer)}`, found.at && ago(found.at)];
  return el("div.failure", {}, el("strong", {}, visible(reason)), el("p.soft", {}, parts.filter(Boolean).join(", ")));
}

// Every attempt that is kept, the last one first.
function attempts(message) {
  const kept = [...message.failure.before, message.failure].reverse();
  const rows = kept.map((each) =>
    el("tr", {}, el("td.number", {}, each.attempt || ""), el("td.when", { title: each.at ?? "" }, ago(each.at)), el("td.id", {}, visible(each.consumer || "not known")), causeView(each, "td")),
  );
  return el(
    "div",
    {},
    el("h2", {}, "Attempts"),
    el("div.scroll", {}, el("table.attempts", {}, el("thead", {}, el("tr", {}, el("th.number", {}, "Attempt"), el("th", {}, "When"), el("th", {}, "Consumer"), el("th", {}, "Why it failed"))), el("tbody", {}, rows))),
    message.failure.before.length >= KEPT ? el("p.soft", {}, `The last ${kept.length} are kept.`) : null,
  );
}

const messageLink = (queue, id) => el("a", { href: `#/queues/${encodeURIComponent(queue)}/message/${encodeURIComponent(id)}` }, visible(`${queue} / ${id}`));

// Where a message came from, and where it went: the messages that belong to it.
function related(queue, message) {
  const rows = [];
  const add = (words, ...link) => rows.push(el("tr", {}, el("th", { scope: "row" }, words), el("td", {}, link)));
  const everywhere = (text, words) => el("a", { href: searchLink(text) }, words);
  const [source, original] = [movedFrom(message, queue), message.headers?.["original-id"]];
  if (source) add("moved here from", messageLink(source, original ?? message.id));
  else if (original) add("first was", everywhere(original, visible(original)));
  const copied = message.body?.originalMessage;
  const routed = message.body?.routing?.sourceQueue;
  if (typeof copied?.messageId === "string" && typeof routed === "string") add("dead letter of", messageLink(routed, copied.messageId));
  if (queue.endsWith(REPLIES) && message.thread_id) add("replies to", messageLink(queue.slice(0, -REPLIES.length), message.thread_id));
  if (message.reply_to) add("its reply, if any", messageLink(message.reply_to, `${message.id}.reply`));
  if (message.thread_id) add("thread", everywhere(message.thread_id, `all messages of ${visible(message.thread_id)}`));
  if (message.trace_id) add("trace", everywhere(message.trace_id, `all messages of ${visible(message.trace_id)}`));
  add("elsewhere", everywhere(message.id, "all messages that mention this one"));
  return el("div", {}, el("h2", {}, "Where it came from and went"), el("table.related", {}, rows));
}
