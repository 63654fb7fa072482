// Begins: signs in, or goes on with who is signed in, and joins the parts of the page.
//
// The open room is in the address of the page, so that Back, a reload and a bookmark lead where one was.

import { Api } from "./api.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { Dialogs } from "./dialogs.js";
import { $ } from "./dom.js";
import { Images } from "./images.js";
import { Members } from "./members.js";
import { menu } from "./menu.js";
import { Messages } from "./messages.js";
import { Search } from "./search.js";
import { forget, remember, remembered, watchTabs } from "./session.js";
import { Sidebar } from "./sidebar.js";
import { SignIn } from "./signin.js";
import { t, translate } from "./text.js";

const TOLD = 6000;
const OFFLINE_AFTER = 1500; // a connection that comes back sooner is not worth a word
const ROOM = /^#room=([0-9a-f-]{36})$/;
const NOTIFY = "pabal.chat.notify";
const THEME = "pabal.chat.theme";

translate();
const api = new Api({ ended: () => end(t("ended")) });
const signIn = new SignIn(api, enter);
let chat = null;
let open = () => {};
let told = 0;
let offline = 0;

function enter(session) {
  remember(session);
  api.token = session.accessToken;
  chat = new Chat(api, session.user, { ended: () => end(t("ended")) });
  const images = new Images(api);
  const dialogs = new Dialogs(chat, { opened: show, tell, signOut });
  const messages = new Messages(chat, images, (url) => dialogs.view(url));
  const composer = new Composer(chat, images, { sent: () => messages.toEnd(), trouble: tell });
  const members = new Members(chat, (person) => dialogs.remove(person));
  const search = new Search(chat, (sequence) => found(sequence));
  new Sidebar(chat, show);
  let shown;
  let wanted = ROOM.exec(location.hash)?.[1] ?? null; // by the address, until the rooms are known

  // Show a room, or the list of rooms, and note it in the address.
  function show(roomId) {
    const address = roomId ? `#room=${roomId}` : location.pathname;
    if (roomId !== (chat.current?.id ?? null)) history.pushState({ within: true }, "", address);
    turn(roomId);
    if (chat.current && !matchMedia("(pointer: coarse)").matches) $("text").focus();
  }

  function turn(roomId) {
    wanted = null;
    chat.open(roomId);
    showCurrent();
  }

  function showCurrent() {
    if (wanted && chat.ready) {
      if (chat.rooms.has(wanted)) return turn(wanted);
      wanted = null;
      history.replaceState(null, "", location.pathname);
      tell(t("notInRoom"));
    }
    $("room-title").textContent = chat.current?.name ?? "";
    $("rename-button").hidden = chat.current?.ownerId !== chat.user.id;
    if (shown === chat.current) return;
    shown = chat.current;
    $("room").hidden = !shown;
    $("nothing").hidden = Boolean(shown);
    document.body.dataset.view = shown ? "room" : "rooms";
    if (!shown) panel("");
    messages.open(shown);
    composer.open(shown);
    members.draw();
  }

  function found(sequence) {
    if (matchMedia("(max-width: 68rem)").matches) panel("");
    messages.toMessage(sequence);
  }

  open = show;
  chat.addEventListener("rooms", showCurrent);
  chat.addEventListener("link", connection);
  chat.addEventListener("trouble", ({ detail }) => tell(detail));
  chat.addEventListener("heard", ({ detail }) => announce(detail));
  window.addEventListener("popstate", () => {
    if (location.hash.startsWith("#join=")) return dialogs.invited();
    turn(ROOM.exec(location.hash)?.[1] ?? null);
  });
  watchTabs({
    gone: () => location.reload(),
    // Another tab may have signed in as somebody else: then this one is theirs too, and begins anew.
    renewed: (next) => (next.user.id === chat.user.id ? chat.renewed(next) : location.reload()),
  });
  $("back").onclick = () => (history.state?.within ? history.back() : show(null));
  $("search-button").onclick = () => {
    panel(document.body.dataset.panel === "search" ? "" : "search");
    if (document.body.dataset.panel === "search") search.open();
  };
  $("chat").hidden = false;
  showCurrent();
  connection();
  chat.start().then(() => dialogs.invited());
}

async function signOut() {
  await api.post("/auth/logout").catch(() => {}); // without a connection it ends here alone
  end("");
}

// Go back to signing in. The page is loaded anew, so that nothing of the one who was here stays.
function end(notice) {
  chat?.stop();
  forget();
  sessionStorage.setItem("pabal.chat.notice", notice);
  location.reload();
}

function tell(words) {
  clearTimeout(told);
  $("toast").textContent = words;
  $("toast").dataset.on = true;
  told = setTimeout(() => ($("toast").dataset.on = false), TOLD);
}

function connection() {
  clearTimeout(offline);
  if (chat.linked) $("offline").hidden = true;
  else offline = setTimeout(() => ($("offline").hidden = chat.linked), OFFLINE_AFTER);
}

// Say a message to those who listen instead of looking, and to those who look elsewhere.
function announce({ room, message }) {
  if (message.type === "SYSTEM") return;
  const where = room === chat.current ? "" : t("inRoom", room.name);
  const words = message.type === "IMAGE" ? t("anImage") : message.content;
  const name = chat.people.get(message.senderId) ? `${chat.people.nameOf(message.senderId)}` : room.name;
  $("announcer").textContent = `${name}${where}: ${words}`;
  if (!document.hidden || !localStorage.getItem(NOTIFY) || globalThis.Notification?.permission !== "granted") return;
  const notification = new Notification(room.name, { body: `${name}: ${words}`, tag: room.id, icon: "icon.svg" });
  notification.onclick = () => {
    window.focus();
    open(room.id);
    notification.close();
  };
}

async function notify() {
  const allowed = !localStorage.getItem(NOTIFY) && (await globalThis.Notification?.requestPermission()) === "granted";
  if (allowed) localStorage.setItem(NOTIFY, "yes");
  else localStorage.removeItem(NOTIFY);
  $("notify").setAttribute("aria-checked", allowed);
}

function theme(chosen) {
  document.documentElement.dataset.theme = chosen;
  localStorage.setItem(THEME, chosen);
  for (const name of ["auto", "light", "dark"]) $(`theme-${name}`).setAttribute("aria-checked", name === chosen);
}

// Open the panel of members or of search beside the room, or close it.
function panel(name) {
  const before = document.body.dataset.panel;
  document.body.dataset.panel = name;
  for (const kind of ["members", "search"]) $(`${kind}-button`).setAttribute("aria-expanded", kind === name);
  $("scrim").hidden = !name;
  if (name === "members") $("members-close").focus();
  else if (!name && before) $(`${before}-button`).focus();
}

menu($("room-menu-button"), $("room-menu"));
menu($("account-button"), $("account-menu"));
$("members-button").onclick = () => panel(document.body.dataset.panel === "members" ? "" : "members");
$("members-close").onclick = $("search-close").onclick = $("scrim").onclick = () => panel("");
$("notify").hidden = !globalThis.Notification;
$("notify").setAttribute("aria-checked", Boolean(localStorage.getItem(NOTIFY)));
$("notify").onclick = notify;
for (const name of ["auto", "light", "dark"]) $(`theme-${name}`).onclick = () => theme(name);
theme(localStorage.getItem(THEME) ?? "auto");
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || document.querySelector("dialog[open]")) return;
  if (document.body.dataset.panel) panel("");
});

const session = remembered();
const notice = sessionStorage.getItem("pabal.chat.notice") ?? "";
sessionStorage.removeItem("pabal.chat.notice");
if (session) enter(session);
else signIn.show(notice);
