// Writing: text that grows with its lines, images by choosing, pasting or dropping.
//
// Enter sends and Shift+Enter breaks the line, but never while an input method composes: there Enter takes a candidate.
// Browsers say so by isComposing, and Safari, which ends the composition before the key, by key code 229.

import { $, el, icon } from "./dom.js";
import { Images, TYPES } from "./images.js";
import { t } from "./text.js";

const LONGEST = 5000; // characters
const WARN = 4500;

export class Composer {
  #chat;
  #images;
  #sent;
  #trouble;
  #text = $("text");

  // `sent()` is called after each message; `trouble(words)` tells what went wrong.
  constructor(chat, images, { sent, trouble }) {
    this.#chat = chat;
    this.#images = images;
    this.#sent = sent;
    this.#trouble = trouble;
    $("composer").onsubmit = (event) => this.#submit(event);
    this.#text.onkeydown = (event) => this.#key(event);
    this.#text.oninput = () => this.#typed();
    this.#text.onpaste = (event) => this.#offered(event, event.clipboardData);
    $("attach").onclick = () => $("file").click();
    $("file").accept = TYPES.join(",");
    $("file").onchange = () => this.#chosen();
    $("room").ondragover = (event) => event.dataTransfer.types.includes("Files") && event.preventDefault();
    $("room").ondrop = (event) => this.#offered(event, event.dataTransfer);
  }

  open(room) {
    this.#text.value = (room && localStorage.getItem(this.#draftKey(room))) ?? "";
    this.#text.placeholder = room ? t("messageTo", room.name) : "";
    this.#fit();
  }

  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    this.#submit(event);
  }

  #typed() {
    if (this.#chat.current) this.#keepDraft(this.#text.value);
    if (this.#text.value.trim()) this.#chat.writes();
    this.#fit();
  }

  #submit(event) {
    event.preventDefault();
    const content = this.#text.value.trim();
    if (!content || !this.#chat.current) return;
    if ([...content].length > LONGEST) {
      return this.#trouble(t("tooLong", LONGEST, [...content].length));
    }
    this.#chat.outbox.add(this.#chat.current.id, "TEXT", content);
    this.#text.value = "";
    this.#keepDraft("");
    this.#fit();
    this.#text.focus();
    this.#sent();
  }

  // What is being written stays in the browser, room by room, past a reload.
  #draftKey(room) {
    return `pabal.chat.draft.${this.#chat.user.id}.${room.id}`;
  }

  #keepDraft(text) {
    const key = this.#draftKey(this.#chat.current);
    try {
      if (text) localStorage.setItem(key, text);
      else localStorage.removeItem(key);
    } catch {
      // No room left there: it stays while this page is open.
    }
  }

  #fit() {
    this.#text.style.height = "auto";
    this.#text.style.height = `${this.#text.scrollHeight}px`;
    const length = [...this.#text.value].length;
    $("count").hidden = length < WARN;
    $("count").textContent = t("countOf", length, LONGEST);
    $("count").dataset.over = length > LONGEST;
    $("send").disabled = !this.#text.value.trim();
  }

  #chosen() {
    [...$("file").files].forEach((file) => this.#upload(file));
    $("file").value = "";
  }

  #offered(event, data) {
    const files = [...data.files];
    if (!files.length) return;
    event.preventDefault();
    files.forEach((file) => this.#upload(file));
  }

  // An upload stands above the text with its picture until it has become a message, or until it is taken away.
  async #upload(file) {
    const refusal = Images.refusal(file);
    if (refusal) return this.#trouble(refusal);
    const room = this.#chat.current;
    const url = URL.createObjectURL(file);
    const words = el("span.upload-words", {}, t("uploading"));
    const again = el("button.link", { type: "button", hidden: true }, t("tryAgain"));
    const away = el("button.icon-button", { type: "button", "aria-label": t("takeAway") }, icon("close"));
    const row = el("li.upload", {}, el("img", { src: url, alt: "" }), words, again, away);
    const linked = () => this.#chat.linked && waits && attempt();
    let waits = false;
    const end = () => {
      row.remove();
      URL.revokeObjectURL(url);
      this.#chat.removeEventListener("link", linked);
    };
    const attempt = async () => {
      words.textContent = t("uploading");
      again.hidden = true;
      waits = false;
      try {
        const id = await this.#images.upload(file);
        if (!row.isConnected) return;
        end();
        this.#chat.outbox.add(room.id, "IMAGE", id);
        this.#sent();
      } catch (failure) {
        waits = failure.status === 0; // it is tried again when the connection is back
        words.textContent = waits ? t("uploadWaits") : failure.message;
        again.hidden = false;
      }
    };
    this.#chat.addEventListener("link", linked);
    again.onclick = attempt;
    away.onclick = end;
    $("uploads").append(row);
    await attempt();
  }
}
