// A body on the page: JSON folded and coloured, text, or bytes as hexadecimal. Nothing of it becomes markup.

import { el } from "./dom.js";
import { count, size, visible } from "./format.js";

const OPEN_DEPTH = 3;
const MOST_ITEMS = 200;

// Whether the body is there, and not only its beginning.
export const isWhole = (message) => message.body !== null || message.body_text === "null";

// A number as it was written, where JavaScript would round it.
class Exact {
  constructor(source) {
    this.source = source;
  }
}

function exact(text) {
  return JSON.parse(text, (name, found, context) =>
    typeof found === "number" && context?.source && String(found) !== context.source ? new Exact(context.source) : found,
  );
}

// The object or list that a text is as JSON, or null.
function jsonIn(words) {
  if (!/^\s*[[{]/.test(words)) return null;
  try {
    return exact(words);
  } catch {
    return null;
  }
}

// The beginning of a body, for a list. A text that is JSON is shown with its escapes decoded.
export function bodyGlance(message) {
  if (message.created_at === null) return `${size(message.body_bytes)}, not readable`;
  let words = message.body_text ?? "";
  if (typeof message.body === "string" && !message.body_encoding) words = jsonIn(message.body) ? JSON.stringify(JSON.parse(message.body)) : message.body;
  return visible(words.slice(0, 160));
}

export function bodyView(message) {
  if (message.created_at === null) {
    if (!message.data) return el("p.soft", {}, "Only the record of this message is kept, not the message itself.");
    return bytesView(atob(message.data), message.body_bytes);
  }
  if (message.body_encoding === "base64" && message.body !== null) return bytesView(atob(message.body));
  if (!isWhole(message)) {
    return el("div", {}, el("p.soft", {}, `The body has ${count(message.body_bytes)} bytes; this is its beginning.`), text(message.body_text));
  }
  if (typeof message.body === "string") return textView(message.body);
  return el("div.json", {}, value(message.body_text ? exact(message.body_text) : message.body, 0));
}

// A text; one that is JSON is shown as such, with a switch to the text as it was sent.
function textView(words) {
  const found = jsonIn(words);
  if (found === null) return text(words);
  const [folded, plain] = [el("div.json", {}, value(found, 0)), text(words)];
  plain.hidden = true;
  const turn = () => {
    [folded.hidden, plain.hidden] = [plain.hidden, folded.hidden];
    button.textContent = plain.hidden ? "Show the text" : "Show as JSON";
  };
  const button = el("button", { type: "button", onclick: turn }, "Show the text");
  return el("div", {}, el("p.row", {}, el("span.soft", {}, "The body is text with JSON in it."), button), folded, plain);
}

const text = (words) => el("pre.body", {}, visible(words));

function bytesView(bytes, total = bytes.length) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, 4096); at += 16) {
    const part = [...bytes.slice(at, at + 16)].map((letter) => letter.charCodeAt(0));
    const hex = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const plain = part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${plain}`);
  }
  const rest = total > 4096 ? [el("p.soft", {}, `${count(total)} bytes; the first 4,096 are shown.`)] : [];
  return el("div", {}, el("pre.body", {}, lines.join("\n")), ...rest);
}

// A value with its name in front, if it has one. Objects and lists can be folded.
function value(found, depth, name = null) {
  const label = name === null ? [] : [el("span.name", {}, `"${visible(name)}"`), ": "];
  if (found instanceof Exact) return el("div", {}, label, el("span.number", {}, found.source));
  if (found === null || typeof found !== "object") {
    const kind = found === null ? "null" : typeof found;
    return el("div", {}, label, el(`span.${kind}`, {}, kind === "string" ? `"${visible(found)}"` : String(found)));
  }
  const list = Array.isArray(found);
  const entries = list ? found.map((item) => [null, item]) : Object.entries(found);
  const [open, close] = list ? ["[", "]"] : ["{", "}"];
  if (!entries.length) return el("div", {}, label, open + close);
  const inside = el("div.inside");
  const unfold = () => {
    if (inside.childElementCount) return;
    inside.append(...entries.slice(0, MOST_ITEMS).map(([own, item]) => value(item, depth + 1, own)));
    if (entries.length > MOST_ITEMS) inside.append(el("div.soft", {}, `… ${count(entries.length - MOST_ITEMS)} more`));
  };
  const opened = depth < OPEN_DEPTH && entries.length <= MOST_ITEMS;
  const words = `${open} ${count(entries.length)} ${list ? "item" : "field"}${entries.length === 1 ? "" : "s"} ${close}`;
  const details = el("details", { open: opened, ontoggle: () => details.open && unfold() }, el("summary", {}, label, words), inside);
  if (opened) unfold();
  return details;
}
