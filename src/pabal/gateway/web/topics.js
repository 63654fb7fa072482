// Topics: the list of them; one topic with its records, groups, partitions and dead records; one record.

import { get, may, post, queuePath } from "./api.js";
import { bodyView } from "./body.js";
import { dialog, el, fill, toast } from "./dom.js";
import { ago, count, size, span, visible } from "./format.js";

const SUFFIX = ".dlq";
const TABS = [
  ["records", "Records"],
  ["groups", "Groups"],
  ["partitions", "Partitions"],
  ["dead", "Dead"],
];
const LEAST = 2000; // milliseconds between two looks
const SHARE = 50; // a look is followed by a rest of so many times its length

const topicPath = (topic, ...rest) => queuePath(topic, ...rest).replace("/queues/", "/topics/");
const topicLink = (topic, ...rest) => `#${topicPath(topic, ...rest)}`;

const SILENCE = 1500; // milliseconds after which the page says that there is no answer
const SILENT = "The topics do not answer. This page waits, and goes on by itself when they do.";

// Calls a function again while the page is shown, less often if it takes long. `note` is shown while there is no answer.
class Again {
  constructor(look) {
    this.look = look;
    this.due = 0;
    this.busy = false;
    this.note = el("p.failure", { role: "alert", hidden: true }, SILENT);
  }

  async now() {
    if (this.busy) return;
    this.busy = true;
    const begun = performance.now();
    const silence = setTimeout(() => (this.note.hidden = false), SILENCE);
    try {
      await this.look();
    } finally {
      clearTimeout(silence);
      this.note.hidden = true;
      this.busy = false;
      this.due = performance.now() + Math.max(LEAST, (performance.now() - begun) * SHARE);
    }
  }

  maybe() {
    if (performance.now() >= this.due) this.now();
  }
}

const lagOf = (topic) => Math.max(0, ...topic.groups.map((group) => group.lag));

export class TopicsPage {
  constructor() {
    this.body = el("tbody");
    this.empty = el("div.empty", { hidden: true });
    this.table = el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "Topic"), el("th.number.wide", {}, "Partitions"), el("th.number", {}, "Records"), el("th.number.wide", {}, "Groups"), el("th.number", {}, "Largest lag"), el("th.number", {}, "Dead"))), this.body);
    this.again = new Again(() => this.load());
    this.element = el("section", { "aria-label": "Topics" }, el("div.row.head", {}, el("h1", {}, "Topics")), this.again.note, el("div.scroll", {}, this.table), this.empty);
    this.again.now();
  }

  show() {
    this.again.maybe();
  }

  async load() {
    try {
      this.draw((await get("/topics")).topics);
    } catch (error) {
      fill(this.empty, el("p", {}, error.message));
      this.table.hidden = true;
      this.empty.hidden = false;
    }
  }

  draw(topics) {
    const names = new Set(topics.map((each) => each.topic));
    // Dead records are shown with the topic that they come from.
    const shown = topics.filter((each) => !(each.topic.endsWith(SUFFIX) && names.has(each.topic.slice(0, -SUFFIX.length))));
    this.table.hidden = !shown.length;
    this.empty.hidden = shown.length > 0;
    fill(this.empty, el("h2", {}, "No topics here"), el("p", {}, "A topic is a log that many groups read, each at its own pace. The gateway shows those of its SQLite store, or of the place that --topics names:"), el("pre.body", {}, "pabal topic create events --partitions 3\npabal gateway --topics kafka://localhost:9092"));
    this.body.replaceChildren(...shown.map((each) => this.row(each)));
  }

  row(topic) {
    const number = (value, link, bad) => el("td.number", {}, value ? el("a", { href: link, class: bad ? "bad" : "" }, count(value)) : el("span.zero", {}, "0"));
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, el("a", { href: topicLink(topic.topic, "records") }, topic.topic), topic.dead ? el("span.tag.bad", {}, `${count(topic.dead)} dead`) : null),
      el("td.number.wide", {}, count(topic.partitions)),
      number(topic.records, topicLink(topic.topic, "records")),
      el("td.number.wide", {}, count(topic.groups.length)),
      number(lagOf(topic), topicLink(topic.topic, "groups")),
      number(topic.dead, topicLink(topic.topic, "dead"), true),
    );
  }
}

function recordRow(topic, record, why) {
  const place = `${record.partition}/${record.offset}`;
  const glance = record.fault ?? (record.body_encoding || record.body_text === null ? `${size(record.body_bytes)}, bytes` : (record.body_text ?? "").slice(0, 160));
  return el(
    "tr",
    {},
    el("td.number", { title: record.at ?? "" }, ago(record.at)),
    el("td.id", {}, el("a", { href: topicLink(topic, "record", record.partition, record.offset) }, place)),
    el("td.id", {}, visible(record.key ?? "")),
    why,
    el("td.glance", {}, visible(glance)),
    el("td.number.wide", {}, size(record.body_bytes)),
  );
}

export class TopicPage {
  constructor(topic, tab, query) {
    this.topic = topic;
    this.tab = TABS.some(([name]) => name === tab) ? tab : "records";
    this.query = query;
    this.status = null;
    this.badges = new Map();
    this.facts = el("p.soft", {}, "loading …");
    this.content = el("div");
    this.element = el("section", { "aria-label": `Topic ${topic}` });
    this.again = new Again(() => this.look());
    this.build();
    this.again.now();
    if (this.tab === "records") this.drawRecords();
    if (this.tab === "dead") this.drawDead();
  }

  build() {
    const tabs = TABS.map(([tab, words]) => {
      const badge = el("span.badge");
      this.badges.set(tab, badge);
      return el("a", { href: topicLink(this.topic, tab), class: tab, "aria-current": tab === this.tab ? "page" : null }, words, badge);
    });
    fill(this.element, el("div.row.head", {}, el("h1", {}, el("a", { href: "#/topics" }, "Topics"), " / ", this.topic)), this.again.note, this.facts, el("nav.tabs", { "aria-label": "Parts of the topic" }, tabs), this.content);
  }

  show() {
    this.again.maybe();
  }

  async look() {
    try {
      this.status = await get(topicPath(this.topic));
    } catch (error) {
      this.facts.textContent = error.message;
      return;
    }
    const { records, partitions, groups, dead, max_age: age, max_bytes: bytes, schema } = this.status;
    const kept = [age ? `records of ${span(age)}` : null, bytes ? `${size(bytes)} in each partition` : null].filter(Boolean).join(", ");
    this.facts.textContent = `${count(records)} records in ${count(partitions.length)} partition${partitions.length === 1 ? "" : "s"}. Kept: ${kept || "everything"}.${schema ? " Bodies are checked with a schema." : ""}`;
    for (const [tab, number] of [["records", records], ["groups", groups.length], ["partitions", partitions.length], ["dead", dead]]) this.badges.get(tab).textContent = count(number);
    if (this.tab === "groups") this.drawGroups();
    if (this.tab === "partitions") this.drawPartitions();
    this.fillPartitions?.(partitions.length);
    if (this.deadCount !== undefined && this.deadCount === 0 && dead) this.drawDead();
  }

  drawGroups() {
    const { groups } = this.status;
    const text = JSON.stringify(groups);
    if (this.shown === text) return;
    this.shown = text;
    const open = new Set([...this.content.querySelectorAll("details[open]")].map((each) => each.dataset.group));
    const first = !this.content.childElementCount;
    const shares = (group) =>
      el("div.scroll", {}, el("table", {}, el("thead", {}, el("tr", {}, el("th.number", {}, "Partition"), el("th.number", {}, "Committed"), el("th.number", {}, "Lag"), el("th", {}, "Read by"))), el("tbody", {}, group.shares.map((share) => el("tr", {}, el("td.number", {}, share.partition), el("td.number", {}, count(share.committed)), el("td.number", {}, count(share.lag)), el("td.id", {}, share.owner ? visible(share.owner) : el("span.soft", {}, "nobody")))))));
    const cards = groups.map((group) => {
      const card = el("details.group", { open: open.has(group.group) || (first && groups.length <= 3) }, el("summary", {}, el("strong", {}, visible(group.group)), ` ${group.lag ? `is ${count(group.lag)} behind` : "has read everything"}`, group.members.length ? `, ${count(group.members.length)} member${group.members.length === 1 ? "" : "s"}` : el("span.tag.warn", {}, "no members")), shares(group));
      card.dataset.group = group.group;
      return card;
    });
    this.content.replaceChildren(...(cards.length ? cards : [el("p.empty", {}, "No group has read this topic yet.")]));
  }

  drawPartitions() {
    const rows = this.status.partitions.map(({ partition, first, next }) =>
      el("tr", {}, el("td.number", {}, el("a", { href: `${topicLink(this.topic, "records")}?partition=${partition}` }, partition)), el("td.number", {}, count(first)), el("td.number", {}, count(next)), el("td.number", {}, count(next - first))),
    );
    fill(this.content, el("div.scroll", {}, el("table", {}, el("thead", {}, el("tr", {}, ["Partition", "First offset", "Next offset", "Records"].map((head) => el("th.number", {}, head)))), el("tbody", {}, rows))));
  }

  // Records

  async drawRecords() {
    const given = this.query;
    const partition = el("select", { "aria-label": "Partition", name: "partition" }, el("option", { value: "" }, "All partitions"));
    this.fillPartitions = (most) => {
      if (partition.childElementCount - 1 >= most) return;
      partition.append(...Array.from({ length: most - partition.childElementCount + 1 }, (_, at) => el("option", { value: partition.childElementCount - 1 + at }, `Partition ${partition.childElementCount - 1 + at}`)));
      partition.value = given.get("partition") ?? "";
    };
    const offset = el("input", { type: "number", min: 0, step: 1, placeholder: "Offset", "aria-label": "From this offset on", value: given.get("offset") ?? "" });
    const at = el("input", { type: "datetime-local", step: 1, "aria-label": "From this time on", value: localTime(given.get("at")) });
    const go = (changes) => {
      const wanted = new URLSearchParams(Object.entries(changes).filter(([, value]) => value !== "" && value !== null));
      location.hash = `${topicLink(this.topic, "records")}${wanted.size ? `?${wanted}` : ""}`;
    };
    const form = el(
      "form.row.choose",
      {
        onsubmit: (event) => {
          event.preventDefault();
          go({ partition: partition.value, ...(at.value ? { at: new Date(at.value).toISOString() } : { offset: offset.value }) });
        },
      },
      partition,
      offset,
      el("span.soft", {}, "or"),
      at,
      el("button.primary", { type: "submit" }, "Show from here"),
      el("button", { type: "button", onclick: () => go({ partition: partition.value }) }, "Newest"),
    );
    const note = el("p.soft", {}, "loading …");
    const body = el("tbody");
    const older = el("button", { type: "button", hidden: true }, "Older");
    const newer = el("button", { type: "button", hidden: true }, "Newer");
    const table = el("table.messages", {}, el("thead", {}, el("tr", {}, el("th.number", {}, "Appended"), el("th", {}, "Place"), el("th", {}, "Key"), el("th", {}, "Body"), el("th.number.wide", {}, "Size"))), body);
    fill(this.content, form, el("div.scroll", {}, table), el("div.row", {}, note, older, newer));
    try {
      const asked = Object.fromEntries([...given].filter(([name]) => ["partition", "offset", "at", "after", "before"].includes(name)));
      if (!["offset", "at", "after", "before"].some((name) => name in asked)) asked.newest = true;
      if (asked.after || asked.before) delete asked.partition;
      const page = await get(`${topicPath(this.topic, "records")}?${new URLSearchParams(asked)}`);
      // The newest first, as messages of logs are read.
      body.replaceChildren(...page.records.toReversed().map((record) => recordRow(this.topic, record)));
      table.hidden = !page.records.length;
      note.textContent = page.records.length ? `${count(page.records.length)} shown, the newest first` : "No records here.";
      const kept = { partition: given.get("partition") };
      older.hidden = !page.previous;
      older.onclick = () => go({ ...kept, before: page.previous });
      newer.hidden = !page.next;
      newer.onclick = () => go({ ...kept, after: page.next });
    } catch (error) {
      note.textContent = error.message;
    }
  }

  // Dead records

  async drawDead(after = "") {
    const note = el("p.soft", {}, "loading …");
    const body = el("tbody");
    const more = el("button", { type: "button", hidden: true }, "Show more");
    const replay = may("manage") ? el("button.primary", { type: "button", onclick: () => this.replay(note) }, "Replay all …") : null;
    const table = el("table.messages", {}, el("thead", {}, el("tr", {}, el("th.number", {}, "Died"), el("th", {}, "Place"), el("th", {}, "Key"), el("th", {}, "Why"), el("th", {}, "Body"), el("th.number.wide", {}, "Size"))), body);
    const dlq = `${this.topic}${SUFFIX}`;
    const all = el("p.soft", {}, "Places are those in ", el("a", { href: topicLink(dlq, "records") }, dlq), ", which keeps the replayed ones too.");
    fill(this.content, el("div.row", {}, replay), el("div.scroll", {}, table), el("div.row", {}, note, more), all);
    const load = async (from) => {
      try {
        const page = await get(`${topicPath(this.topic, "dead")}?${new URLSearchParams({ after: from })}`);
        body.append(...page.records.map((record) => recordRow(dlq, record, el("td", {}, el("span.why", {}, visible(`${record.dead.code}${record.dead.reason ? `: ${record.dead.reason}` : ""}`)), el("div.soft", {}, deadFor(record.dead))))));
        this.deadCount = body.childElementCount;
        table.hidden = !this.deadCount;
        if (replay) replay.hidden = !this.deadCount;
        all.hidden = !this.deadCount;
        note.textContent = this.deadCount ? `${count(this.deadCount)} shown, the oldest first` : "No dead records: every group handled what it read, or it was replayed.";
        more.hidden = !page.next;
        more.onclick = () => load(page.next);
      } catch (error) {
        note.textContent = error.message;
      }
    };
    await load(after);
  }

  async replay(note) {
    const path = topicPath(this.topic, "replay");
    try {
      const { left: total, until } = await post(path, { dry_run: true });
      const answer = await dialog("Replay dead records", [el("p", {}, `Append ${count(total)} dead records to ${this.topic} again? Each is handled by the group that failed; other groups skip it.`)], [
        { label: "Cancel", value: "" },
        { label: `Replay ${count(total)}`, value: "yes", kind: "primary" },
      ]);
      if (!answer) return;
      let done = 0;
      let left = total;
      while (left) {
        const found = await post(path, { until });
        done += found.replayed;
        note.textContent = `${count(done)} of ${count(total)} replayed …`;
        if (found.left === left) throw new Error("The rest is being replayed by somebody else, or cannot be read.");
        left = found.left;
      }
      toast(done === total ? `${count(done)} replayed` : `${count(done)} of ${count(total)} replayed; of the others only a note is left, or somebody else replayed them`);
    } catch (error) {
      toast(error.message, "bad");
    }
    this.again.now();
    await this.drawDead();
  }
}

const deadFor = (dead) => [dead.group ? `for ${visible(dead.group)}` : "", dead.attempts ? `after ${count(dead.attempts)} attempt${dead.attempts === 1 ? "" : "s"}` : ""].filter(Boolean).join(" ");

// The text of an input of the local time, of an instant.
function localTime(text) {
  const at = text ? new Date(text) : null;
  return at && !Number.isNaN(at.getTime()) ? new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19) : "";
}

export class RecordPage {
  constructor(topic, partition, offset) {
    [this.topic, this.partition, this.offset] = [topic, Number(partition), Number(offset)];
    this.element = el("section", { "aria-label": `Record ${partition}/${offset}` }, el("p.soft", {}, "loading …"));
    this.load();
  }

  show() {}

  async load() {
    const head = el("h1", {}, el("a", { href: "#/topics" }, "Topics"), " / ", el("a", { href: topicLink(this.topic, "records") }, this.topic), " / ", el("span.id", {}, `${this.partition}/${this.offset}`));
    const near = (offset, words) => el("a", { href: topicLink(this.topic, "record", this.partition, offset) }, words);
    const around = el("div.row", {}, this.offset ? near(this.offset - 1, "← the one before") : null, near(this.offset + 1, "the next one →"));
    try {
      const record = await get(topicPath(this.topic, "records", this.partition, this.offset));
      const rows = [
        ["at", record.at ? `${record.at} (${ago(record.at)})` : ""],
        ["partition", String(record.partition)],
        ["offset", String(record.offset)],
        ["key", visible(record.key ?? "")],
        ...Object.entries(record.headers).map(([name, value]) => [`header ${visible(name)}`, visible(value)]),
      ].filter(([, value]) => value !== "");
      fill(
        this.element,
        el("div.row.head", {}, head),
        record.fault ? el("div.failure", {}, el("strong", {}, "This record is damaged"), el("p", {}, visible(record.fault))) : null,
        around,
        el("h2", {}, `Body, ${size(record.body_bytes)}`),
        record.fault ? el("p.soft", {}, "It cannot be read.") : bodyView({ ...record, created_at: "" }),
        el("h2", {}, "Fields"),
        el("table.fields", {}, rows.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value)))),
      );
    } catch (error) {
      fill(this.element, el("div.row.head", {}, head), el("p", {}, error.message), around);
    }
  }
}
