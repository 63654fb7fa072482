// What asks before it acts: a new room, joining, inviting, leaving; and the whole image.
//
// An invitation is an address of this page whose fragment names the room and the invitation: a fragment is never sent
// to a server, so that it stands in no log.

import { $ } from "./dom.js";
import { momentOf } from "./format.js";

const FRAGMENT = /#join=([0-9a-f-]{36})(?:\.([\w.-]+))?$/i;

export class Dialogs {
  #chat;
  #opened;

  // `opened(roomId)` shows a room that was made or joined, or null after leaving one.
  constructor(chat, opened) {
    this.#chat = chat;
    this.#opened = opened;
    for (const button of document.querySelectorAll("[data-close]")) {
      button.onclick = () => button.closest("dialog").close();
    }
    for (const id of ["new-room", "first-room"]) $(id).onclick = () => this.#ask("create");
    for (const id of ["join-room", "first-join"]) $(id).onclick = () => this.#ask("join");
    $("invite-button").onclick = () => this.#invite();
    $("leave-button").onclick = () => this.#leaving();
    $("invite-copy").onclick = () => this.#copy();
    $("viewer").onclick = () => $("viewer").close();
    this.#on("create", () => this.#create());
    this.#on("join", () => this.#join());
    this.#on("leave", () => this.#leave());
  }

  // Ask whether to take the invitation by which this page was opened, if it was.
  invited() {
    if (!FRAGMENT.test(location.hash)) return;
    this.#ask("join");
    $("join-link").value = location.href;
    history.replaceState(null, "", location.pathname);
  }

  view(url) {
    $("viewer-image").src = url;
    $("viewer").showModal();
  }

  #ask(name) {
    $(`${name}-form`).reset();
    $(`${name}-error`).textContent = "";
    $(`${name}-dialog`).showModal();
  }

  #on(name, act) {
    $(`${name}-form`).onsubmit = async (event) => {
      event.preventDefault();
      const button = event.submitter ?? $(`${name}-form`).querySelector("[type=submit]");
      button.disabled = true;
      $(`${name}-error`).textContent = "";
      try {
        const roomId = await act();
        $(`${name}-dialog`).close();
        this.#opened(roomId);
      } catch (failure) {
        $(`${name}-error`).textContent = failure.message;
      } finally {
        button.disabled = false;
      }
    };
  }

  #create() {
    return this.#chat.create($("create-name").value.trim(), $("create-open").checked);
  }

  async #join() {
    const found = FRAGMENT.exec($("join-link").value.trim());
    if (!found) throw new Error("This is not an invitation: it is an address that ends in #join=…");
    const [, roomId, invitation] = found;
    await this.#chat.join(roomId.toLowerCase(), invitation);
    return roomId.toLowerCase();
  }

  async #leave() {
    await this.#chat.leave(this.#chat.current.id);
    return null;
  }

  #leaving() {
    $("leave-name").textContent = this.#chat.current.name;
    this.#ask("leave");
  }

  async #invite() {
    const room = this.#chat.current;
    $("invite-link").value = "";
    $("invite-error").textContent = $("invite-until").textContent = "";
    $("invite-copy").textContent = "Copy";
    $("invite-dialog").showModal();
    try {
      const { invitation, expiresAt } = await this.#chat.invite(room.id);
      $("invite-link").value = `${location.origin}${location.pathname}#join=${room.id}.${invitation}`;
      $("invite-until").textContent = `It can be used until ${momentOf(expiresAt)}.`;
      $("invite-link").select();
    } catch (failure) {
      $("invite-error").textContent = failure.message;
    }
  }

  async #copy() {
    $("invite-link").select();
    await navigator.clipboard.writeText($("invite-link").value);
    $("invite-copy").textContent = "Copied";
  }
}
