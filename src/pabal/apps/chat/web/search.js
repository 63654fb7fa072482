// Looking for messages in the open room: the newest that were found, and from each a way to its place.

import { $, el, mark } from "./dom.js";
import { agoOf, languageOf } from "./format.js";
import { t } from "./text.js";

const AFTER = 250; // milliseconds without a key

export class Search {
  #chat;
  #found;
  #timer = 0;
  #asked = 0; // counts questions, so that a late answer to an earlier one is dropped

  // `found(sequence)` shows a message.
  constructor(chat, found) {
    this.#chat = chat;
    this.#found = found;
    $("search-form").onsubmit = (event) => this.#submit(event);
    $("search-text").oninput = () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#look(), AFTER);
    };
  }

  open() {
    $("search-text").value = "";
    this.#show([], "");
    $("search-text").focus();
  }

  #submit(event) {
    event.preventDefault();
    clearTimeout(this.#timer);
    this.#look();
  }

  async #look() {
    const query = $("search-text").value.trim();
    const asked = ++this.#asked;
    if (!query || !this.#chat.current) return this.#show([], "");
    try {
      const { messages } = await this.#chat.search(this.#chat.current, query);
      if (asked === this.#asked) this.#show(messages, messages.length ? "" : t("searchNothing"));
    } catch (failure) {
      if (asked === this.#asked) this.#show([], failure.message);
    }
  }

  #show(messages, words) {
    $("search-words").textContent = words;
    $("search-results").replaceChildren(...messages.map((message) => this.#row(message)));
  }

  #row({ senderId, content, createdAt, sequence }) {
    const name = this.#chat.people.nameOf(senderId);
    const button = el(
      "button.result",
      { type: "button", onclick: () => this.#found(sequence) },
      mark("person", senderId, name),
      el("span.room-name", {}, name),
      el("time.room-time", {}, agoOf(createdAt)),
      el("span.result-text", { lang: languageOf(content) }, content),
    );
    return el("li", {}, button);
  }
}
