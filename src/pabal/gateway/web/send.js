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
const NUMBERS = [
  ["priority", "Priority", "-100 to 100, larger first"],
  ["delay", "Delay, seconds", "before it can be taken"],
  ["ttl", "Time to live, seconds", "dead if nobody takes it before"],
];

export async function askSend(queue, from = null) {
  const whole = from && (from.body !== null || from.body_text === "null");
  const start = from ? (whole ? (typeof from.body === "string" && from.body_encoding ? from.body : JSON.stringify(from.body, null, 2)) : from.body_text) : "{\n  \n}";
  const body = el("textarea", { rows: 9, spellcheck: "false" });
  body.value = start ?? "";
  const headers = el("textarea", { rows: 2, spellcheck: "false", placeholder: "name: value" });
  headers.value = Object.entries(from?.headers ?? {}).map(([name, value]) => `${name}: ${value}`).join("\n");
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
    const answer = await dialog(`Send a message to ${queue}`, [el("label", {}, "Body, as JSON", body), more], [
      { label: "Cancel", value: "" },
      { label: "Send", value: "yes", kind: "primary" },
    ]);
    if (!answer) return false;
    try {
      const message = { body: from?.body_encoding ? body.value : JSON.parse(body.value) };
      if (from?.body_encoding) message.body_encoding = from.body_encoding;
      for (const [name, [input, type]] of inputs) {
        if (input.value !== "") message[name] = type === "number" ? Number(input.value) : input.value;
      }
      const lines = headers.value.split("\n").filter((line) => line.trim());
      if (lines.length) message.headers = Object.fromEntries(lines.map((line) => line.split(/:\s*(.*)/s).slice(0, 2)));
      if (from && Object.keys(from.attributes ?? {}).length) message.attributes = from.attributes;
      const [sent] = (await post(queuePath(queue, "messages"), { messages: [message] })).messages;
      if (sent.dead) toast(`${sent.id} is a dead letter: its body does not fit the schema of ${queue}`, "bad");
      else toast(sent.duplicate ? `Not stored: ${sent.id} has the same key or id` : `Sent as ${sent.id}`);
      return true;
    } catch (error) {
      toast(error instanceof SyntaxError ? `The body is not JSON: ${error.message}` : error.message, "bad");
    }
  }
}
