// What asks before it acts: rooms, invitations, members, the account; and the whole image.
//
// An invitation is an address of this page whose fragment names the room and the invitation: a fragment is never sent
// to a server, so that it stands in no log.

import { $, el } from "./dom.js";
import { momentOf } from "./format.js";
import { t } from "./text.js";

const FRAGMENT = /#join=([0-9a-f-]{36})(?:\.([\w.-]+))?$/i;

export class Dialogs {
  #chat;
  #opened;
  #tell;
  #removing = null;
  #made = new Map(); // room id to the invitation that this page made

  // `opened(roomId)` shows a room that was made or joined, or null after leaving one; `tell(words)` says what was done;
  // `signOut()` ends the session.
  constructor(chat, { opened, tell, signOut }) {
    this.#chat = chat;
    this.#opened = opened;
    this.#tell = tell;
    for (const button of document.querySelectorAll("[data-close]")) {
      button.onclick = () => button.closest("dialog").close();
    }
    for (const id of ["new-room", "first-room"]) $(id).onclick = () => this.#ask("create");
    for (const id of ["join-room", "first-join"]) $(id).onclick = () => this.#asked("");
    for (const id of ["invite-button", "invite-here", "invite-members"]) $(id).onclick = () => this.#invite();
    $("leave-button").onclick = () => this.#question("leave", t("leaveQuestion", chat.current.name));
    $("rename-button").onclick = () => this.#ask("rename", { name: chat.current.name });
    $("change-name").onclick = () => this.#ask("name", { text: chat.people.nameOf(chat.user.id) });
    $("change-password").onclick = () => this.#ask("password");
    $("show-sessions").onclick = () => this.#sessions();
    $("sign-out").onclick = () => this.#ask("signout");
    $("invite-copy").onclick = () => this.#copy();
    $("join-link").oninput = () => this.#look();
    $("viewer").onclick = () => $("viewer").close();
    this.#on("create", () => chat.create($("create-name").value.trim(), $("create-open").checked));
    this.#on("join", () => this.#join());
    this.#on("leave", () => chat.leave(chat.current.id).then(() => null));
    this.#on("rename", () => chat.rename(chat.current, $("rename-name").value.trim()));
    this.#on("remove", () => this.#remove());
    this.#on("name", () => chat.changeName($("name-text").value.trim()));
    this.#on("password", () => this.#changePassword());
    this.#on("signout", signOut);
  }

  // Ask whether to take the invitation by which this page was opened, if it was.
  invited() {
    if (!FRAGMENT.test(location.hash)) return;
    const link = location.href;
    history.replaceState(null, "", location.pathname);
    this.#asked(link);
  }

  remove(person) {
    this.#removing = person;
    this.#question("remove", t("removeQuestion", person.name));
  }

  view(url) {
    $("viewer-image").src = url;
    $("viewer").showModal();
  }

  #ask(name, values = {}) {
    $(`${name}-form`).reset();
    for (const [field, value] of Object.entries(values)) $(`${name}-${field}`).value = value;
    $(`${name}-error`).textContent = "";
    $(`${name}-dialog`).showModal();
  }

  #question(name, words) {
    $(`${name}-title`).textContent = words;
    this.#ask(name);
  }

  // Do what a form asks for; what comes back, if anything, is the room to show.
  #on(name, act) {
    $(`${name}-form`).onsubmit = async (event) => {
      event.preventDefault();
      const button = event.submitter ?? $(`${name}-form`).querySelector("[type=submit]");
      button.disabled = true;
      $(`${name}-error`).textContent = "";
      try {
        const roomId = await act();
        $(`${name}-dialog`).close();
        if (roomId !== undefined) this.#opened(roomId);
      } catch (failure) {
        $(`${name}-error`).textContent = failure.message;
      } finally {
        button.disabled = false;
      }
    };
  }

  #asked(link) {
    this.#ask("join", { link });
    this.#look();
  }

  // Say whose invitation it is, before it is taken.
  async #look() {
    const link = $("join-link").value.trim();
    const invitation = FRAGMENT.exec(link)?.[2];
    $("join-words").textContent = t("invitationHint");
    if (!invitation) return;
    const found = await this.#chat.look(invitation).catch(() => null);
    if (found && $("join-link").value.trim() === link) {
      $("join-words").textContent = t("invitedBy", found.inviterName, found.roomName);
    }
  }

  async #join() {
    const found = FRAGMENT.exec($("join-link").value.trim());
    if (!found) throw new Error(t("noInvitation"));
    const [, roomId, invitation] = found;
    await this.#chat.join(roomId.toLowerCase(), invitation);
    return roomId.toLowerCase();
  }

  async #changePassword() {
    await this.#chat.changePassword($("password-old").value, $("password-new").value);
    this.#tell(t("passwordChanged"));
  }

  async #invite() {
    const room = this.#chat.current;
    $("invite-link").value = "";
    $("invite-error").textContent = $("invite-until").textContent = "";
    $("invite-copy").textContent = t("copy");
    $("invitations").replaceChildren();
    $("invite-dialog").showModal();
    try {
      const { invitation, expiresAt } = await this.#invitation(room);
      $("invite-link").value = `${location.origin}${location.pathname}#join=${room.id}.${invitation}`;
      $("invite-until").textContent = t("usableUntil", momentOf(expiresAt));
      $("invite-link").select();
      await this.#listInvitations(room);
    } catch (failure) {
      $("invite-error").textContent = failure.message;
    }
  }

  async #remove() {
    await this.#chat.remove(this.#chat.current, this.#removing.id);
    this.#made.delete(this.#chat.current.id); // it does not let in who was removed; the next one does
  }

  // The invitation that this page made before, while it is valid; else a new one: each is a way into the room.
  async #invitation(room) {
    const open = new Set((await this.#chat.invitations(room.id)).map(({ id }) => id));
    if (!open.has(this.#made.get(room.id)?.id)) this.#made.set(room.id, await this.#chat.invite(room.id));
    return this.#made.get(room.id);
  }

  async #listInvitations(room) {
    const found = await this.#chat.invitations(room.id);
    const rows = found.map(({ id, inviterName, expiresAt }) => {
      const end = () => this.#act("invite", () => this.#chat.revoke(room.id, id), () => this.#listInvitations(room));
      const words = t("invitationLine", inviterName, momentOf(expiresAt));
      return el("li", {}, el("span", {}, words), el("button.link", { type: "button", onclick: end }, t("revoke")));
    });
    $("invitations").replaceChildren(...rows);
    $("invitations-title").hidden = !rows.length;
  }

  async #sessions() {
    $("sessions-error").textContent = "";
    if (!$("sessions-dialog").open) $("sessions-dialog").showModal();
    await this.#act("sessions", () => this.#chat.sessions(), (found) => this.#listSessions(found));
  }

  #listSessions(found) {
    const rows = found.map(({ id, agent, address, seenAt, current }) => {
      const words = [el("b", {}, current ? t("thisBrowser") : browserOf(agent)), `${address}, ${t("lastSeen", momentOf(seenAt))}`];
      const end = () => this.#act("sessions", () => this.#chat.endSession(id), () => this.#sessions());
      const button = current ? null : el("button.link", { type: "button", onclick: end }, t("end"));
      return el("li", { title: agent }, el("span", {}, ...words), button);
    });
    $("sessions").replaceChildren(...rows);
  }

  // Do something inside an open dialog, and then something with what came of it.
  async #act(name, work, then) {
    try {
      await then(await work());
    } catch (failure) {
      $(`${name}-error`).textContent = failure.message;
    }
  }

  async #copy() {
    $("invite-link").select();
    await navigator.clipboard.writeText($("invite-link").value);
    $("invite-copy").textContent = t("copied");
  }
}

// The name of a browser, from what it says of itself.
function browserOf(agent) {
  const [, name] = /(Firefox|Edg|OPR|Chrome|Safari)\//.exec(agent) ?? [];
  return { Edg: "Edge", OPR: "Opera" }[name] ?? name ?? (agent.split(/[ /]/)[0] || "?");
}
