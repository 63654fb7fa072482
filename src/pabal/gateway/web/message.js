// One message: all fields, why it failed, its body, and what can be done with it.

import { get, may, post, queuePath } from "./api.js";
import { bodyView, isWhole } from "./body.js";
import { dialog, el, fill, toast } from "./dom.js";
import { ago, size, visible } from "./format.js";
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

export class MessagePage {
  constructor(queue, id) {
    this.queue = queue;
    this.id = id;
    this.element = el("section", { "aria-label": `Message ${id}` }, el("p.soft", {}, "loading …"));
    this.load();
  }

  show() {}

  async load() {
    try {
      this.draw(await get(queuePath(this.queue, "messages", this.id)));
    } catch (error) {
      this.element.replaceChildren(this.head(), el("p", {}, error.message));
    }
  }

  head() {
    const base = `#/queues/${encodeURIComponent(this.queue)}`;
    return el("h1", {}, el("a", { href: "#/" }, "Queues"), " / ", el("a", { href: `${base}/ready` }, this.queue), " / ", el("span.id", {}, visible(this.id)));
  }

  draw(message) {
    const fields = FIELDS.filter((name) => message[name] !== null && message[name] !== "" && !(name === "version" && message[name] === 1));
    const rows = fields.map((name) => [name, /_at$/.test(name) ? `${message[name]} (${ago(message[name])})` : visible(String(message[name]))]);
    for (const [name, value] of Object.entries(message.headers ?? {})) rows.push([`header ${visible(name)}`, visible(value)]);
    const attributes = Object.keys(message.attributes ?? {}).length ? el("div", {}, el("h2", {}, "Attributes"), bodyView({ created_at: "", body: message.attributes })) : null;
    fill(
      this.element,
      el("div.row.head", {}, this.head()),
      el("p.lead", {}, el(`span.tag.${message.state === "dead" || message.state === "corrupt" ? "bad" : "plain"}`, {}, message.state), ` It ${WORDS[message.state]}. Attempts: ${message.attempt}.`),
      message.failure ? failure(message.failure) : null,
      el("div.row", {}, this.actions(message)),
      el("h2", {}, `Body, ${size(message.body_bytes)}`),
      bodyView(message),
      attributes,
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
    }
    if (may("send") && message.created_at !== null && isWhole(message)) {
      buttons.push(act("Edit a copy and send it", "", async () => (await askSend(this.queue, message)) && this.load()));
    }
    if (may("manage") && ["ready", "delayed"].includes(message.state)) {
      buttons.push(act("Cancel", ".danger", () => this.asked("Cancel this message? Nobody will get it.", "Cancel the message", "cancel", selection, "It is cancelled.")));
    }
    if (may("manage") && ["dead", "corrupt"].includes(message.state)) {
      buttons.push(act("Remove …", ".danger", () => this.asked("Remove this message for good? This cannot be undone.", "Remove it", "remove", { ...selection, state: message.state }, "It is removed.")));
    }
    return buttons;
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

function failure(found) {
  const by = found.consumer ? `, by ${visible(found.consumer)}` : "";
  return el(
    "div.failure",
    {},
    el("strong", {}, found.code),
    el("p", {}, visible(found.reason || "No reason was given.")),
    el("p.soft", {}, `attempt ${found.attempt}${by}${found.at ? `, ${ago(found.at)}` : ""}`),
  );
}
