// A form that sends a message, with all fields, from nothing or from another message.

import { post, queuePath } from "./api.js";
import { dialog, el, toast } from "./dom.js";

const TEXTS = [
  ["id", "Id", "an id of your own; sent again, it is stored once"],
  ["type", "Type", "what kind of message it is"],
  ["group", "Group", "messages of a group are handled one after another"],
  ["dedup_key", "Dedup key", "a second message with this key is dropped for a while"],
  ["target", "Target", "the one consumer that may take it"],
  ["thread_id", "Thread", "what it belongs to"],
];
const OF_A_MOVE = ["original-id", "source-queue"]; // headers of a message that its policy moved; a copy was not moved
const KEPT = ["version", "reply_to", "trace_id"]; // of another message, beside what the form has
// What a body is: how its text in the form becomes JSON.
const KINDS = {
  json: ["JSON", (words) => (JSON.parse(words), words)], // as it is: numbers of 64 bits would be rounded by JavaScript
  text: ["text", JSON.stringify],
  base64: ["bytes, in base64", JSON.stringify],
};

function kindOf(message) {
  if (message?.body_encoding) return "base64";
  return typeof message?.body === "string" ? "text" : "json";
}

const NUMBERS = [
  ["priority", "Priority", "-100 to 100, larger first"],
  ["delay", "Delay, seconds", "before it can be taken"],
  ["ttl", "Time to live, seconds", "dead if nobody takes it before"],
];

export async function askSend(queue, from = null) {
  const body = el("textarea", { rows: 9, spellcheck: "false" });
  body.value = (from ? (kindOf(from) === "json" ? from.body_text : from.body) : "{\n  \n}") ?? "";
  const words = el("span");
  const name = () => (words.textContent = `Body, as ${KINDS[kind.value][0]}`);
  const kind = el("select", { onchange: name }, Object.entries(KINDS).map(([value, [label]]) => el("option", { value, selected: value === kindOf(from) }, label)));
  name();
  const headers = el("textarea", { rows: 2, spellcheck: "false", placeholder: "name: value" });
  headers.value = Object.entries(from?.headers ?? {}).filter(([name]) => !OF_A_MOVE.includes(name)).map(([name, value]) => `${name}: ${value}`).join("\n");
  const inputs = new Map();
  const field = ([name, label, hint], type) => {
    const input = el("input", { type, placeholder: hint, step: type === "number" ? "any" : null, autocomplete: "off" });
    const old = from?.[name];
    if (name !== "id" && name !== "dedup_key" && old !== null && old !== undefined && old !== 0) input.value = old;
    inputs.set(name, [input, type]);
    return el("label", {}, label, input);
  };
  const more = el("details", {}, el("summary", {}, "More fields"), el("div.grid", {}, TEXTS.map((each) => field(each, "text")), NUMBERS.map((each) => field(each, "number"))), el("label", {}, "Headers, one a line", headers));
  for (;;) {
    const answer = await dialog(`Send a message to ${queue}`, [el("label", {}, "The body is", kind), el("label", {}, words, body), more], [
      { label: "Cancel", value: "" },
      { label: "Send", value: "yes", kind: "primary" },
    ]);
    if (!answer) return false;
    try {
      const text = KINDS[kind.value][1](body.value);
      const message = kind.value === "base64" ? { body_encoding: "base64" } : {};
      for (const name of KEPT) if (from?.[name]) message[name] = from[name];
      for (const [name, [input, type]] of inputs) {
        if (input.value !== "") message[name] = type === "number" ? Number(input.value) : input.value;
      }
      const lines = headers.value.split("\n").filter((line) => line.trim());
      if (lines.length) message.headers = Object.fromEntries(lines.map((line) => line.split(/:\s*(.*)/s).slice(0, 2)));
      if (from && Object.keys(from.attributes ?? {}).length) message.attributes = from.attributes;
      const fields = JSON.stringify(message).slice(1);
      const request = `{"messages":[{"body":${text}${fields === "}" ? "" : ","}${fields}]}`;
      const [sent] = (await post(queuePath(queue, "messages"), request)).messages;
      if (sent.dead) toast(`${sent.id} is a dead letter: its body does not fit the schema of ${queue}`, "bad");
      else toast(sent.duplicate ? `Not stored: ${sent.id} has the same key or id` : `Sent as ${sent.id}`);
      return true;
    } catch (error) {
      toast(error instanceof SyntaxError ? `The body is not JSON: ${error.message}` : error.message, "bad");
    }
  }
}
