// Which page is shown, the stream of figures, signing in, and the theme.

import { loadSession, onSignedOut, post, remove, session } from "./api.js";
import { $, el, toast } from "./dom.js";
import { ConsumersPage, SchedulesPage } from "./lists.js";
import { MessagePage } from "./message.js";
import { Overview } from "./overview.js";
import { KingdomPage, NeedsPage, showSections, TeamPage } from "./people.js";
import { QueuePage } from "./queue.js";
import { SearchPage } from "./search.js";
import { RecordPage, TopicPage, TopicsPage } from "./topics.js";

// Milliseconds without news: the gateway sends some each second. Then the page says so, and then it connects anew. It
// looks each LOOK: a stop is shown within two seconds.
const SILENCE = 1750;
const GIVE_UP = 8000;
const LOOK = 250;

let page = null;
let latest = null;
let people = null;
let stream = null;
let heard = 0;
let opened = 0;
const GONE = "The gateway does not answer. This page goes on by itself when it is back.";

function route() {
  if (!session.signedIn) return signIn();
  const [path, query = ""] = location.hash.slice(1).split("?");
  const parts = path.split("/").filter(Boolean).map(decoded);
  const search = new URLSearchParams(query).get("search") ?? "";
  const [section, queue, state = "ready", id] = parts;
  if (section === "queues" && state === "message" && id) page = new MessagePage(queue, id);
  else if (section === "queues" && queue) page = new QueuePage(queue, state, search);
  else if (section === "consumers") page = new ConsumersPage();
  else if (section === "schedules") page = new SchedulesPage();
  else if (section === "topics" && parts[2] === "record") page = new RecordPage(queue, parts[3], parts[4]);
  else if (section === "topics" && queue) page = new TopicPage(queue, parts[2], new URLSearchParams(query));
  else if (section === "topics") page = new TopicsPage();
  else if (section === "search") page = new SearchPage(search);
  else if (section === "needs") page = new NeedsPage();
  else if (section === "team") page = new TeamPage();
  else if (section === "kingdom") page = new KingdomPage();
  else page = new Overview();
  $("page").replaceChildren(page.element);
  for (const link of document.querySelectorAll("nav [data-section]")) {
    const own = link.dataset.section === (section ?? "queues");
    if (own) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = [parts.slice(1).join(" "), "Pabal"].filter(Boolean).join(" · ");
  page.showPeople?.(people);
  if (latest) page.show(latest);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// A browser keeps six connections to one address: a page that nobody sees gives its own back.
document.addEventListener("visibilitychange", () => {
  if (!session.signedIn) return;
  if (document.hidden) stream?.close();
  else listen();
});

function listen() {
  stream?.close();
  stream = new EventSource("/events");
  opened = Date.now();
  stream.onmessage = (event) => {
    latest = JSON.parse(event.data);
    alive();
    if (!latest.fault) page?.show(latest);
  };
  stream.addEventListener("alive", alive); // without new figures
  stream.addEventListener("people", (event) => {
    people = JSON.parse(event.data);
    showSections(people);
    page?.showPeople?.(people);
  });
  stream.onerror = () => {
    if (stream.readyState === EventSource.CLOSED) setTimeout(resume, 1000);
    state("bad", "not connected", GONE);
  };
}

function alive() {
  heard = Date.now();
  if (!latest) return;
  if (latest.fault) state("bad", "the store does not answer", latest.fault);
  else if (latest.manager) state("warn", "live, without the manager", latest.manager);
  else state("good", "live");
}

// A gateway that was started again may not know this browser any more.
async function resume() {
  try {
    if (await loadSession()) listen();
    else signIn();
  } catch {
    setTimeout(resume, 1000);
  }
}

function state(kind, words, banner = "") {
  $("live").className = `dot ${kind}`;
  $("live-text").textContent = words;
  $("banner").textContent = banner;
  $("banner").hidden = !banner;
}

setInterval(() => {
  if (!session.signedIn || !heard || document.hidden) return;
  const silent = Date.now() - Math.max(heard, opened);
  if (silent > SILENCE && stream.readyState !== EventSource.CLOSED) state("bad", "not connected", GONE);
  if (silent > GIVE_UP && stream.readyState !== EventSource.CLOSED) listen();
}, LOOK);

function signIn() {
  stream?.close();
  session.signedIn = false;
  $("sign-out").hidden = true;
  state("", "not signed in");
  const key = el("input", { name: "username", autocomplete: "username" });
  const secret = el("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const words = session.local
    ? "Open the address that the gateway printed when it started, or paste its token here. A gateway that was started again has a new token."
    : "Sign in with a key of this gateway and its secret (`pabal gateway-keys add`).";
  const form = el(
    "form.card",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        try {
          await post("/session", { key: session.local ? "" : key.value, secret: secret.value });
          await start();
        } catch (error) {
          toast(error.message, "bad");
        }
      },
    },
    el("h1", {}, "Sign in"),
    el("p.soft", {}, words),
    session.local ? null : el("label", {}, "Key", key),
    el("label", {}, session.local ? "Token" : "Secret", secret),
    el("button.primary", { type: "submit" }, "Sign in"),
  );
  page = null;
  $("page").replaceChildren(form);
}

async function start() {
  try {
    if (!(await loadSession())) return signIn();
  } catch (error) {
    state("bad", "not connected", error.message);
    return setTimeout(start, 1000);
  }
  $("sign-out").hidden = session.local;
  listen();
  route();
}

const themes = ["", "light", "dark"];
function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  $("theme").textContent = { "": "Theme: system", light: "Theme: light", dark: "Theme: dark" }[theme];
  localStorage.setItem("theme", theme);
}
setTheme(localStorage.getItem("theme") ?? "");
$("theme").addEventListener("click", () => setTheme(themes[(themes.indexOf(document.documentElement.dataset.theme ?? "") + 1) % 3]));
$("sign-out").addEventListener("click", async () => {
  await remove("/session");
  signIn();
});
onSignedOut(signIn);
// The hash is the address of a page here, so the link may not change it.
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("page").focus();
});
addEventListener("hashchange", () => {
  route();
  $("page").focus(); // what had the focus is gone
});
start();
