// What waits for a person, the team of agents, and the kingdom.

import { get, may, post } from "./api.js";
import { $, el, fill, toast } from "./dom.js";
import { ago, count, span, visible } from "./format.js";

const KINDS = { question: "Question", problem: "Problem", mail: "Mail" };
const label = (place) => place.split("/").filter((part) => part && part !== ".ignite").at(-1) ?? place;
const stamp = (seconds) => (seconds ? new Date(seconds * 1000).toISOString() : null);

// The sections of applications are shown where there are some, with the number of what waits.
export function showSections(people) {
  const sources = new Set(people?.places.map((each) => each.source) ?? []);
  for (const link of document.querySelectorAll("nav [data-source]")) {
    link.hidden = link.dataset.source === "any" ? !sources.size : !sources.has(link.dataset.source);
  }
  $("waiting").hidden = !people?.waiting;
  $("waiting").textContent = people?.waiting ? count(people.waiting) : "";
}

// On the overview: the first things that wait for a person, each a link.
export class FirstNeeds {
  constructor() {
    this.element = el("div.needs-first", { hidden: true });
  }

  show(people) {
    const text = JSON.stringify(people);
    if (this.shown === text) return;
    this.shown = text;
    this.element.hidden = !people?.first.length;
    if (this.element.hidden) return;
    const more = people.waiting - people.first.length;
    fill(
      this.element,
      el("h2", {}, el("a", { href: "#/needs" }, "Needs you")),
      people.first.map((need) => el("a.glance-need", { href: "#/needs" }, tags(need), el("span.who", {}, visible(need.sender)), el("span.what", {}, visible(need.text.split("\n")[0])), el("span.soft", {}, ago(need.since)))),
      more > 0 ? el("a.soft", { href: "#/needs" }, `and ${count(more)} more`) : null,
    );
  }
}

const tags = (need) => [need.urgent ? el("span.tag.bad", {}, "urgent") : null, el(`span.tag.${need.kind === "problem" ? "warn" : "plain"}`, {}, KINDS[need.kind])];

// A page that asks again with each event, one request at a time, and keeps what it shows if nothing changed.
class Polling {
  constructor(title, path) {
    this.path = path;
    this.body = el("div", {}, el("p.soft", {}, "loading …"));
    this.element = el("section", { "aria-label": title }, el("div.row.head", {}, el("h1", {}, title)), this.body);
    this.show();
  }

  async show() {
    if (this.loading) return;
    this.loading = true;
    try {
      this.draw(await get(this.path));
    } catch (error) {
      this.shown = "";
      fill(this.body, el("p.empty", {}, error.message));
    } finally {
      this.loading = false;
    }
  }
}

export class NeedsPage extends Polling {
  constructor() {
    super("Needs you", "/needs");
  }

  showPeople() {
    this.show(); // also while the store does not answer
  }

  draw(found) {
    this.cards ??= new Map();
    const faults = found.places.filter((place) => place.fault).map((place) => fault(place));
    const several = (source) => found.places.filter((place) => place.source === source).length > 1;
    const listed = found.needs.map((need) => this.card(need, several(need.source)));
    const more = found.waiting - found.needs.length;
    const rest = more > 0 ? el("p.soft", {}, `and ${count(more)} more messages`) : null;
    const kept = new Set(listed);
    for (const [key, card] of this.cards) if (!kept.has(card)) this.cards.delete(key);
    const text = JSON.stringify([faults.length, more, [...this.cards.keys()], listed.length]);
    const same = this.shown === text && listed.every((card, at) => this.body.children[faults.length + at] === card);
    for (const card of listed) card.refresh?.();
    if (same) return; // what a person types stays where it is
    this.shown = text;
    fill(this.body, faults, listed, rest, listed.length ? null : el("div.empty", {}, el("h2", {}, "Nothing waits for you"), el("p", {}, "Questions, problems and mail of teams and kingdoms come here.")));
  }

  card(need, several) {
    const key = JSON.stringify([need.place, need.kind, need.id, need.text, need.options]);
    if (!this.cards.has(key)) this.cards.set(key, needCard(need, several, () => this.show()));
    return this.cards.get(key);
  }
}

function needCard(need, several, again) {
  const since = el("span.soft");
  const place = several ? el("span.soft", { title: need.place }, `in ${visible(label(need.place))}`) : null;
  const card = el(
    `article.need${need.urgent ? ".urgent" : ""}`,
    { "aria-label": `${KINDS[need.kind]} of ${visible(need.sender)}` },
    el("p.lead", {}, tags(need), el("strong", {}, visible(need.sender)), place, since),
    el("p.text", {}, visible(need.text)),
    need.body && need.body.trim() !== need.text.trim() ? el("p.text.soft", {}, visible(need.body)) : null,
  );
  const asks = need.kind !== "problem";
  const form = asks && may("manage") ? answerForm(need, again) : null;
  if (form) card.append(form);
  else if (asks) card.append(el("p.soft", {}, "You may look, and not answer."));
  if (need.kind !== "question") card.append(el("p.soft.hint", {}, "In a shell: ", el("code", {}, visible(need.command))));
  card.refresh = () => {
    const closes = need.expires_at ? `, closes ${ago(need.expires_at)}` : "";
    since.textContent = `${ago(need.since)}${closes}`;
    since.title = need.since;
  };
  return card;
}

function answerForm(need, again) {
  const text = el("textarea", { rows: 2, required: true, maxlength: 40000, "aria-label": `Answer to ${visible(need.sender)}`, placeholder: "Your answer" });
  const give = async (answer) => {
    for (const button of form.querySelectorAll("button")) button.disabled = true;
    try {
      const done = await post("/needs/answer", { place: need.place, id: need.id, text: answer });
      toast(need.kind === "mail" ? "Sent" : `Answered: ${visible(done.answer)}`);
    } catch (error) {
      toast(visible(error.message), "bad");
    }
    for (const button of form.querySelectorAll("button")) button.disabled = false;
    await again();
  };
  const form = el("form.row.answer", {
    onsubmit: (event) => {
      event.preventDefault();
      give(event.submitter?.value || text.value);
    },
  });
  if (need.options.length) form.append(...need.options.map((option) => el("button", { type: "submit", value: option }, visible(option))));
  else form.append(text, el("button.primary", { type: "submit" }, need.kind === "mail" ? "Reply" : "Answer"));
  return form;
}

const fault = (place) => el("div.failure", {}, el("strong", {}, visible(label(place.place))), el("p", {}, visible(place.fault)));

const table = (heads, rows) => el("div.scroll", {}, el("table", {}, el("thead", {}, el("tr", {}, heads.map(([words, kind = ""]) => el(`th${kind}`, {}, words)))), el("tbody", {}, rows)));
const number = (value, kind = "", where = "") => el(`td.number${where}`, {}, value ? el(`span${kind}`, {}, count(value)) : el("span.zero", {}, "0"));

const LIVES = { idle: "good", busy: "good", starting: "warn", stale: "warn", away: "warn", gone: "bad" };

export class TeamPage extends Polling {
  constructor() {
    super("Team", "/teams");
  }

  draw(found) {
    fill(this.body, found.teams.map((team) => (team.report ? teamView(team.report, found.teams.length > 1) : fault(team))), found.teams.length ? null : el("p.empty", {}, "There is no team beside this store. `pabal ignite init` makes one."));
  }
}

function teamView(team, several) {
  const served = team.monitor.pid !== null;
  const words = served ? `The monitor is ${team.monitor.state === "ok" ? "running" : team.monitor.state} (process ${team.monitor.pid}).` : "Nobody serves this team: mail waits. `pabal ignite up` starts it.";
  const heads = [["Agent"], ["Is"], ["Since", ".wide"], ["In hand"], ["Waiting", ".number"], ["Oldest", ".number.wide"], ["Retry", ".number.wide"], ["Dead", ".number"], ["Done", ".number.wide"]];
  return el(
    "div.place",
    {},
    several ? el("h2", { title: team.root }, visible(label(team.root))) : null,
    el("p", {}, el(`span.dot.${served && team.monitor.state === "ok" ? "good" : "bad"}`), " ", words, team.deadLetters ? el("span.tag.bad", {}, `${count(team.deadLetters)} dead letters`) : null),
    table(heads, team.agents.map((agent) => agentRow(agent, served))),
  );
}

function agentRow(agent, served) {
  const known = served ? agent.presence : null;
  const hands = agent.hand.map((hand) => el("div", {}, el("strong", {}, visible(hand.subject || hand.type)), el("span.soft", {}, ` ${visible(hand.type)} from ${visible(hand.sender || "nobody")}${hand.since ? `, ${ago(stamp(hand.since))}` : ""}${hand.attempt > 1 ? `, attempt ${hand.attempt}` : ""}`)));
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, visible(agent.name)),
    el("td.is", {}, el(`span.dot.${known ? LIVES[known.presence] ?? "warn" : ""}`), ` ${known?.presence ?? "not known"}`),
    el("td.wide", {}, known ? span(Date.now() / 1000 - known.since) : ""),
    el("td", {}, hands.length ? hands : el("span.zero", {}, "nothing")),
    number(agent.ready),
    el("td.number.wide", {}, span(agent.oldest)),
    number(agent.delayed, "", ".wide"),
    number(agent.dead + agent.corrupt, ".why"),
    number(agent.done, "", ".wide"),
  );
}

const ROLES = { ok: "good", external: "", hung: "warn", gone: "bad" };

export class KingdomPage extends Polling {
  constructor() {
    super("Kingdom", "/kingdoms");
  }

  draw(found) {
    fill(this.body, found.kingdoms.map((each) => (each.report ? kingdomView(each.report, found.kingdoms.length > 1) : fault(each))), found.kingdoms.length ? null : el("p.empty", {}, "There is no kingdom beside this store. `pabal kingdom init` makes one."));
  }
}

function kingdomView(kingdom, several) {
  const up = kingdom.up !== null;
  const rows = (list, cells) => list.map((each) => el("tr", {}, cells(each)));
  const document = (each, second) => [el("td.id", {}, visible(each.id)), el("td", {}, visible(second)), el("td", {}, visible(each.type)), el("td", {}, visible(each.priority)), el("td", { title: each.created_at }, ago(each.created_at)), el("td", {}, visible(each.why))];
  const problems = kingdom.problems.map((text) => el("li", {}, visible(text)));
  const section = (title, list, empty, ...content) => [el("h2", {}, title, el("span.badge", {}, count(list.length))), list.length ? el("div", {}, content) : el("p.soft", {}, empty)];
  return el(
    "div.place",
    {},
    several ? el("h2", { title: kingdom.home }, visible(label(kingdom.home))) : null,
    el("p", {}, el(`span.dot.${up ? "good" : "bad"}`), up ? ` The kingdom is up (process ${kingdom.up}). ` : " The kingdom is down: `pabal kingdom up` starts it. ", `Health: ${visible(kingdom.health)}. Soldiers: ${kingdom.soldiers} of ${kingdom.most_soldiers}.`),
    problems.length ? el("div.failure", {}, el("strong", {}, `${problems.length} to look at`), el("ul", {}, problems)) : null,
    section("Roles", kingdom.roles, "No role.", table([["Role"], ["Is"], ["Process", ".number"], ["Last pass"]], rows(kingdom.roles, (role) => [el("th", { scope: "row" }, visible(role.name)), el("td.is", {}, el(`span.dot.${ROLES[role.state] ?? "warn"}`), ` ${role.state}`), el("td.number", {}, role.pid ?? ""), el("td", {}, role.since)]))),
    section("Soldiers", kingdom.sessions, "No soldier runs.", table([["Soldier"], ["Task"], ["General"], ["Process", ".number"], ["Since"]], rows(kingdom.sessions, (each) => [el("td.id", {}, visible(each.id)), el("td.id", {}, visible(each.task_id)), el("td", {}, visible(each.general)), el("td.number", {}, each.pid), el("td", { title: each.started_at }, ago(each.started_at))]))),
    section("Tasks", kingdom.tasks, "No task waits or runs.", table([["Task"], ["General"], ["Type"], ["Priority"], ["Made"], ["How it stands"]], rows(kingdom.tasks, (each) => document(each, each.general)))),
    section("Events", kingdom.events, "No event waits.", table([["Event"], ["Type"], ["Priority"], ["Made"], ["Why it waits"]], rows(kingdom.events, (each) => document(each, "").toSpliced(1, 1)))),
  );
}
