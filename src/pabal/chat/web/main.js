// Begins: signs in, or goes on with who is signed in, and joins the parts of the page.

import { Api } from "./api.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { Dialogs } from "./dialogs.js";
import { $ } from "./dom.js";
import { Images } from "./images.js";
import { Members } from "./members.js";
import { Messages } from "./messages.js";
import { forget, remember, remembered } from "./session.js";
import { Sidebar } from "./sidebar.js";
import { SignIn } from "./signin.js";

const ENDED = "Your session has ended. Sign in again; what was not sent is kept.";
const TOLD = 6000;
const OFFLINE_AFTER = 1500; // a connection that comes back sooner is not worth a word

const api = new Api({ ended: () => end(ENDED) });
const signIn = new SignIn(api, enter);
let chat = null;
let told = 0;
let offline = 0;

function enter(session) {
  remember(session);
  api.token = session.accessToken;
  chat = new Chat(api, session.user, { ended: () => end(ENDED) });
  const images = new Images(api);
  const dialogs = new Dialogs(chat, (roomId) => show(roomId));
  const messages = new Messages(chat, images, (url) => dialogs.view(url));
  const composer = new Composer(chat, images, { sent: () => messages.toEnd(), trouble: tell });
  const members = new Members(chat);
  new Sidebar(chat, (roomId) => show(roomId));
  let shown;

  function show(roomId) {
    chat.open(roomId);
    showCurrent();
    if (chat.current && !matchMedia("(pointer: coarse)").matches) $("text").focus();
  }

  function showCurrent() {
    if (shown === chat.current) return;
    shown = chat.current;
    $("room").hidden = !shown;
    $("nothing").hidden = Boolean(shown);
    document.body.dataset.view = shown ? "room" : "rooms";
    $("room-title").textContent = shown?.name ?? "";
    messages.open(shown);
    composer.open(shown);
    members.draw();
  }

  chat.addEventListener("rooms", showCurrent);
  chat.addEventListener("link", connection);
  chat.addEventListener("trouble", ({ detail }) => tell(detail));
  chat.addEventListener("heard", ({ detail }) => announce(detail));
  window.addEventListener("hashchange", () => dialogs.invited());
  $("back").onclick = () => show(null);
  $("chat").hidden = false;
  showCurrent();
  connection();
  chat.start().then(() => dialogs.invited());
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

// Say a message to those who listen instead of looking.
function announce({ room, message }) {
  if (message.type === "SYSTEM") return;
  const where = room === chat.current ? "" : ` in ${room.name}`;
  const words = message.type === "IMAGE" ? "an image" : message.content;
  $("announcer").textContent = `${chat.people.nameOf(message.senderId)}${where}: ${words}`;
}

function panel() {
  const open = document.body.dataset.members !== "open";
  document.body.dataset.members = open ? "open" : "closed";
  $("members-button").setAttribute("aria-expanded", open);
  if (open) $("members-close").focus();
  else $("members-button").focus();
}

$("members-button").onclick = $("members-close").onclick = panel;
$("sign-out").onclick = () => end("");
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || document.querySelector("dialog[open]")) return;
  if (document.body.dataset.members === "open") panel();
});

const session = remembered();
const notice = sessionStorage.getItem("pabal.chat.notice") ?? "";
sessionStorage.removeItem("pabal.chat.notice");
if (session) enter(session);
else signIn.show(notice);
