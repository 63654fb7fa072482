// Who is in the open room, who is there now, and who is writing.

import { $, arrange, el, mark, soon } from "./dom.js";

export class Members {
  #chat;

  constructor(chat) {
    this.#chat = chat;
    const draw = soon(() => this.draw());
    for (const name of ["people", "rooms"]) chat.addEventListener(name, draw);
    chat.addEventListener("typing", () => this.#typing());
    chat.addEventListener("messages", () => this.#typing());
  }

  draw() {
    const room = this.#chat.current;
    if (!room) return;
    const people = room.members.map((id) => ({ id, ...this.#chat.people.get(id) }));
    people.sort((one, other) => other.online - one.online || one.email.localeCompare(other.email));
    const online = people.filter((person) => person.online).length;
    $("presence").textContent = people.length ? `${counted(people.length)}, ${online} online` : "";
    arrange($("members"), people.map((person) => this.#row(person)));
    this.#typing();
  }

  #row({ id, email, online }) {
    const name = id === this.#chat.user.id ? `${this.#chat.people.nameOf(id)} (you)` : this.#chat.people.nameOf(id);
    return el(
      "li.member",
      { data: { user: id, online } },
      mark("person", id, email, online),
      el("span.member-name", {}, name),
      el("span.member-email", { title: email }, email),
      el("span.hidden", {}, online ? "online" : "away"),
    );
  }

  #typing() {
    const room = this.#chat.current;
    const names = room ? [...room.typing.keys()].map((id) => this.#chat.people.nameOf(id)) : [];
    const who = names.length > 2 ? "Several people" : names.join(" and ");
    $("typing-words").textContent = names.length ? `${who} ${names.length > 1 ? "are" : "is"} typing` : "";
    $("typing").dataset.on = names.length > 0;
  }
}

const counted = (count) => (count === 1 ? "1 member" : `${count} members`);
