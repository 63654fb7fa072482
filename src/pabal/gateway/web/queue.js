// One queue: its messages by state, search, and what an operator does with them.

import { each, get, may, post, queuePath, remove } from "./api.js";
import { bodyGlance } from "./body.js";
import { dialog, el, fill, toast } from "./dom.js";
import { ago, count, messages, visible } from "./format.js";
import { askSend } from "./send.js";
import { askPolicy } from "./policy.js";
import { causeView, Reasons } from "./reasons.js";
import { askRedrive, askSendBack, countMoved, movedFrom, redriveWords, runRedrive, sendBackWords } from "./redrive.js";

const STATES = [
  ["ready", "Ready"],
  ["inflight", "In flight"],
  ["delayed", "Delayed"],
  ["dead", "Dead"],
  ["corrupt", "Corrupt"],
  ["done", "Done"],
];
const REMOVABLE = ["ready", "delayed", "dead", "corrupt", "done"];

export class QueuePage {
  constructor(queue, state, search = "") {
    this.queue = queue;
    this.state = state;
    this.search = search;
    this.next = null;
    this.chosen = new Set();
    this.shownIds = [];
    this.figures = null;
    this.queues = [];
    this.tabs = new Map();
    this.element = el("section", { "aria-label": `Queue ${queue}` });
    this.build();
    this.load();
  }

  build() {
    const base = `#/queues/${encodeURIComponent(this.queue)}`;
    const tabs = STATES.map(([state, words]) => {
      const number = el("span.badge");
      this.tabs.set(state, number);
      return el("a", { href: `${base}/${state}`, class: state, "aria-current": state === this.state ? "page" : null }, words, number);
    });
    this.paused = el("span.tag.warn", { hidden: true }, "paused");
    this.pauseButton = el("button", { type: "button", onclick: () => this.pause() }, "Pause");
    this.searchBox = el("input", { type: "search", value: this.search, placeholder: "Search id, type, text, header, reason", "aria-label": "Search messages" });
    this.backButton = el("button", { type: "button", hidden: true, onclick: () => this.sendBackAll() }, this.search ? "Send back all that match …" : "Send back all that were moved here …");
    this.reasons = this.state === "dead" ? new Reasons(this.queue, this.search) : null;
    this.bulk = el("div.row.bulk", { hidden: true });
    this.progress = el("div.row.progress", { hidden: true });
    this.body = el("tbody");
    this.all = el("input", { type: "checkbox", "aria-label": "Choose all that are shown", onchange: () => this.chooseAll() });
    this.note = el("p.soft");
    this.more = el("button", { type: "button", hidden: true, onclick: () => this.load(this.next) }, "Show more");
    const manage = may("manage")
      ? [
          this.pauseButton,
          el("button", { type: "button", onclick: () => askPolicy(this.queue) }, "Policy"),
          REMOVABLE.includes(this.state) ? el("button.danger", { type: "button", onclick: () => this.removeAll() }, this.search ? "Remove all that match …" : "Remove all …") : null,
          el("button.danger", { type: "button", onclick: () => this.deleteQueue() }, "Delete queue …"),
        ]
      : [];
    const send = may("send") ? el("button.primary", { type: "button", onclick: () => askSend(this.queue).then((sent) => sent && this.load()) }, "Send a message") : null;
    fill(
      this.element,
      el("div.row.head", {}, el("h1", {}, el("a", { href: "#/" }, "Queues"), " / ", this.queue, " ", this.paused), send, manage),
      el("nav.tabs", { "aria-label": "States" }, tabs),
      el(
        "form.row",
        {
          role: "search",
          onsubmit: (event) => {
            event.preventDefault();
            location.hash = `${base}/${this.state}${this.searchBox.value ? `?search=${encodeURIComponent(this.searchBox.value)}` : ""}`;
          },
        },
        this.searchBox,
        el("button", { type: "submit" }, "Search"),
        this.state === "dead" && may("manage") ? el("button", { type: "button", onclick: () => this.redriveAll() }, this.search ? "Redrive all that match …" : "Redrive all …") : null,
        this.backButton,
      ),
      this.reasons?.element,
      this.bulk,
      this.progress,
      el("div.scroll", {}, el("table.messages", {}, el("thead", {}, el("tr", {}, el("th.check", {}, this.all), el("th", {}, "Message"), el("th", {}, this.state === "dead" ? "Why" : "Type"), el("th", {}, "Body"), el("th.number", {}, "Attempt"), el("th.number", {}, this.state === "delayed" ? "Due" : "Since"))), this.body)),
      el("div.row", {}, this.note, this.more),
    );
  }

  show(figures) {
    this.queues = figures.queues.map((each) => each.queue);
    this.figures = figures.queues.find((each) => each.queue === this.queue) ?? null;
    if (!this.figures) return;
    for (const [state, badge] of this.tabs) badge.textContent = count(this.figures[state]);
    this.paused.hidden = !this.figures.paused;
    this.pauseButton.textContent = this.figures.paused ? "Resume" : "Pause";
    // A list does not move under the reader's hand: only an empty one fills by itself.
    if (!this.shownIds.length && this.figures[this.state] && !this.search && !this.loading) this.load();
  }

  async load(after = "") {
    this.loading = true;
    this.note.textContent = this.search ? "searching …" : "loading …";
    try {
      let scanned = 0;
      let found = [];
      let next = after;
      do {
        const page = await get(`${queuePath(this.queue, "messages")}?${new URLSearchParams({ state: this.state, search: this.search, after: next, limit: 50 })}`);
        found = found.concat(page.messages);
        next = page.next;
        scanned += 1;
      } while (this.search && !found.length && next && scanned < 200);
      if (!after) {
        this.body.replaceChildren();
        this.shownIds = [];
        this.chosen.clear();
      }
      this.next = next;
      this.body.append(...found.map((message) => this.row(message)));
      this.shownIds.push(...found.map((message) => message.id));
      this.more.hidden = !next;
      if (this.state === "ready" && may("manage") && found.some((message) => movedFrom(message, this.queue))) this.backButton.hidden = false;
      this.note.textContent = this.shownIds.length ? `${count(this.shownIds.length)} shown` : this.nothing();
      this.drawBulk();
      if (!after) await this.reasons?.load();
    } catch (error) {
      this.note.textContent = error.message;
    } finally {
      this.loading = false;
    }
  }

  nothing() {
    if (this.search) return `Nothing ${this.state} fits "${this.search}".`;
    return this.state === "done" ? "No handled messages are kept (see doneRetentionSec in the policy)." : `No ${this.state} messages.`;
  }

  row(message) {
    const box = el("input", {
      type: "checkbox",
      "aria-label": `Choose ${message.id}`,
      onchange: () => {
        if (box.checked) this.chosen.add(message.id);
        else this.chosen.delete(message.id);
        this.drawBulk();
      },
    });
    box.dataset.id = message.id;
    const since = { delayed: message.due_at, dead: message.failure?.at ?? message.due_at }[this.state] ?? message.created_at;
    return el(
      "tr",
      {},
      el("td.check", {}, box),
      el("td.id", {}, el("a", { href: `#/queues/${encodeURIComponent(this.queue)}/message/${encodeURIComponent(message.id)}` }, visible(message.id))),
      el("td", {}, this.state === "dead" || this.state === "corrupt" ? (message.failure ? causeView(message.failure) : "") : [visible(message.type ?? ""), this.source(message)]),
      el("td.glance", {}, bodyGlance(message)),
      el("td.number", {}, message.attempt || ""),
      el("td.number", { title: since ?? "" }, ago(since)),
    );
  }

  source(message) {
    const source = movedFrom(message, this.queue);
    return source ? el("small.moved", {}, `moved from ${visible(source)}`) : null;
  }

  chooseAll() {
    for (const box of this.body.querySelectorAll("input[type=checkbox]")) {
      box.checked = this.all.checked;
      if (box.checked) this.chosen.add(box.dataset.id);
      else this.chosen.delete(box.dataset.id);
    }
    this.drawBulk();
  }

  drawBulk() {
    this.bulk.hidden = !this.chosen.size || !may("manage");
    this.all.checked = this.chosen.size > 0 && this.chosen.size === this.shownIds.length;
    const ids = [...this.chosen].slice(0, 1000);
    const act = (words, kind, work) => el(`button${kind}`, { type: "button", onclick: work }, words);
    this.bulk.replaceChildren(
      el("strong", {}, `${count(this.chosen.size)} chosen`),
      this.state === "dead" ? act("Redrive", ".primary", () => this.redrive({ ids }, ids.length)) : "",
      this.state === "dead" ? act("Redrive to …", "", () => this.askRedrive({ ids }, ids.length, `the ${messages(ids.length, "chosen")}`)) : "",
      REMOVABLE.includes(this.state) ? act("Remove …", ".danger", () => this.askRemove({ ids }, ids.length)) : "",
    );
  }

  // Count what an act would change, now: the figures on the page may be a second old. The act takes nothing that comes
  // after the count.
  async counted(verb, state) {
    const now = await get(queuePath(this.queue));
    const selection = { search: this.search, before: now.at };
    if (!this.search) return [selection, now[state]];
    const counting = { ...selection, dry_run: true, ...(verb === "remove" ? { state } : {}) };
    return [selection, await each(queuePath(this.queue, verb), counting)];
  }

  async redriveAll() {
    await this.tried(async () => {
      const [selection, total] = await this.counted("redrive", "dead");
      if (!total) return toast(this.nothing());
      const which = this.search ? `the ${messages(total, "dead")} that fit "${this.search}"` : `all ${messages(total, "dead")}`;
      await this.askRedrive(selection, total, which);
    });
  }

  async askRedrive(selection, total, which) {
    const terms = await askRedrive(this.queue, this.queues, which, total);
    if (terms) await this.redrive({ ...selection, ...terms }, total);
  }

  async redrive(selection, expected) {
    await this.tried(async () => {
      const outcome = await runRedrive(this.queue, selection, expected, this.progress);
      toast(...redriveWords(outcome, expected, selection.to));
      await this.load();
    });
  }

  async sendBackAll() {
    await this.tried(async () => {
      const { at } = await get(queuePath(this.queue));
      const selection = { search: this.search, before: at };
      const sources = await countMoved(this.queue, selection);
      if (!sources.size) return toast("Nothing here was moved from another queue.");
      if (await askSendBack(this.queue, sources)) await this.sendBack(selection, sources);
    });
  }

  async sendBack(selection, sources) {
    for (const [to, total] of sources) {
      const outcome = await runRedrive(this.queue, { ...selection, to }, total, this.progress, "send-back");
      toast(...sendBackWords(outcome, total, to));
      if (outcome.stopped) break;
    }
    this.backButton.hidden = true;
    await this.load();
  }

  async removeAll() {
    await this.tried(async () => {
      const [selection, total] = await this.counted("remove", this.state);
      if (!total) return toast(this.nothing());
      await this.askRemove(selection, total);
    });
  }

  async askRemove(selection, total) {
    const which = selection.ids ? " chosen" : this.search ? ` that fit "${this.search}"` : "";
    const answer = await dialog("Remove messages", [el("p", {}, `Remove ${messages(total, this.state)}${which} of ${this.queue} for good? This cannot be undone.`)], [
      { label: "Cancel", value: "" },
      { label: `Remove ${count(total)}`, value: "yes", kind: "danger" },
    ]);
    if (!answer) return;
    await this.tried(async () => {
      const done = await each(queuePath(this.queue, "remove"), { ...selection, state: this.state }, (so) => (this.note.textContent = `${count(so)} of ${count(total)} removed …`));
      toast(`${count(done)} removed`);
      await this.load();
    });
  }

  deleteQueue() {
    return this.tried(async () => this.askDelete(await get(queuePath(this.queue))));
  }

  async askDelete(now) {
    const held = STATES.reduce((sum, [state]) => sum + (state === "done" ? 0 : now[state]), 0);
    const words = held ? `It has ${messages(held)}, removed with it.` : "It has no messages.";
    const typed = el("input", { autocomplete: "off", "aria-label": "Name of the queue" });
    const answer = await dialog("Delete the queue", [el("p", {}, `Delete ${this.queue} with its policy? ${words} This cannot be undone. Type its name to be sure:`), typed], [
      { label: "Cancel", value: "" },
      { label: "Delete", value: "yes", kind: "danger" },
    ]);
    if (!answer) return;
    if (typed.value.trim() !== this.queue) return toast("The name was not the same: nothing was deleted.", "bad");
    await remove(`${queuePath(this.queue)}?force=true`);
    toast(`${this.queue} is deleted`);
    location.hash = "#/";
  }

  async pause() {
    await this.tried(async () => {
      const now = await post(queuePath(this.queue, this.figures?.paused ? "resume" : "pause"));
      toast(now.paused ? `${this.queue} is paused: consumers get no messages` : `${this.queue} goes on`);
      this.show({ queues: [{ ...this.figures, ...now }] });
    });
  }

  async tried(work) {
    try {
      await work();
    } catch (error) {
      toast(error.message, "bad");
    }
  }
}
