// Who is in the open room, who is there now, and who is writing.

import { $, arrange, el, icon, mark, soon } from "./dom.js";
import { t } from "./text.js";

export class Members {
  #chat;
  #remove;

  // `remove(person)` asks whether to remove a member.
  constructor(chat, remove) {
    this.#chat = chat;
    this.#remove = remove;
    const draw = soon(() => this.draw());
    for (const name of ["people", "rooms"]) chat.addEventListener(name, draw);
    chat.addEventListener("typing", () => this.#typing());
    chat.addEventListener("messages", () => this.#typing());
  }

  draw() {
    const room = this.#chat.current;
    if (!room) return;
    const people = room.members.map((id) => ({ id, ...this.#chat.people.get(id) }));
    people.sort((one, other) => other.online - one.online || one.name.localeCompare(other.name));
    const online = people.filter((person) => person.online).length;
    $("presence").textContent = people.length ? t("membersOnline", people.length, online) : "";
    arrange($("members"), people.map((person) => this.#row(room, person)));
    this.#typing();
  }

  #row(room, { id, name, email, online }) {
    const mine = id === this.#chat.user.id;
    const shown = mine ? t("youMark", name) : name;
    const row = el(
      "li.member",
      { data: { user: id, online } },
      mark("person", id, name, online),
      el("span.member-name", { title: email }, shown, id === room.ownerId ? el("span.owner", {}, t("owner")) : null),
      el("span.member-email", { title: email }, email),
      el("span.hidden", {}, t(online ? "online" : "away")),
    );
    if (room.ownerId === this.#chat.user.id && !mine) {
      const label = t("removeMember", name);
      const away = el("button.icon-button", { type: "button", "aria-label": label, title: label }, icon("remove"));
      away.onclick = () => this.#remove({ id, name });
      row.append(away);
    }
    return row;
  }

  #typing() {
    const room = this.#chat.current;
    const names = room ? [...room.typing.keys()].map((id) => this.#chat.people.nameOf(id)) : [];
    const words = ["", t("typingOne", names[0]), t("typingTwo", names[0], names[1])][names.length] ?? t("typingMany");
    $("typing-words").textContent = words;
    $("typing").dataset.on = names.length > 0;
  }
}
