// A form that sends a message, with all fields, from nothing or from another message.

import { post, queuePath } from "./api.js";
import { dialog, el, toast } from "./dom.js";

const TEXTS = [
  ["id", "Id", "an id of your own; sent again, it is stored once"],
  ["type", "Type", "what kind of message it is"],
  ["group", "Group", "messages of a group are handled one after another"],
  ["dedup_key", "Dedup key", "a second message with this key is dropped for a while"],
  ["unique", "Unique key", "dropped while another message with this key waits or is in flight"],
  ["target", "Target", "the one consumer that may take it"],
  ["sender", "Sender", "who sends it"],
  ["reply_to", "Reply to", "the queue for its reply"],
  ["thread_id", "Thread", "what it belongs to"],
  ["trace_id", "Trace", "the trace that it is part of"],
];
const NOT_COPIED = ["id", "dedup_key", "unique", "sender"]; // a copy would be dropped for them, or has another sender
const OF_A_MOVE = ["original-id", "source-queue"]; // headers of a message that its policy moved; a copy was not moved
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
  ["version", "Version", "of the form of its body"],
  ["priority", "Priority", "-100 to 100, larger first"],
  ["delay", "Delay, seconds", "before it can be taken"],
  ["ttl", "Time to live, seconds", "dead if nobody takes it before"],
];

const AT = ["at", "At", "the time from which it can be taken, instead of a delay"];
const READ = { text: String, number: Number, "datetime-local": (words) => new Date(words).toISOString() };

export async function askSend(queue, from = null) {
  const body = el("textarea", { name: "body", rows: 9, spellcheck: "false" });
  body.value = (from ? (kindOf(from) === "json" ? from.body_text : from.body) : "{\n  \n}") ?? "";
  const words = el("span");
  const name = () => (words.textContent = `Body, as ${KINDS[kind.value][0]}`);
  const kind = el("select", { name: "body_encoding", onchange: name }, Object.entries(KINDS).map(([value, [label]]) => el("option", { value, selected: value === kindOf(from) }, label)));
  name();
  const headers = el("textarea", { name: "headers", rows: 2, spellcheck: "false", placeholder: "name: value" });
  headers.value = Object.entries(from?.headers ?? {}).filter(([name]) => !OF_A_MOVE.includes(name)).map(([name, value]) => `${name}: ${value}`).join("\n");
  const attributes = el("textarea", { name: "attributes", rows: 2, spellcheck: "false", placeholder: '{"name": "value"}' });
  if (Object.keys(from?.attributes ?? {}).length) attributes.value = JSON.stringify(from.attributes);
  const inputs = new Map();
  const field = ([name, label, hint], type) => {
    const input = el("input", { name, type, step: type === "number" ? "any" : null, autocomplete: "off" });
    if (from?.[name] && !NOT_COPIED.includes(name)) input.value = from[name];
    inputs.set(name, [input, type]);
    return el("label", {}, label, input, el("small", {}, hint));
  };
  const more = el("details", {}, el("summary", {}, "More fields"), el("div.grid", {}, TEXTS.map((each) => field(each, "text")), NUMBERS.map((each) => field(each, "number")), field(AT, "datetime-local")), el("label", {}, "Headers, one a line", headers), el("label", {}, "Attributes, as a JSON object", attributes));
  for (;;) {
    const answer = await dialog(`Send a message to ${queue}`, [el("label", {}, "The body is", kind), el("label", {}, words, body), more], [
      { label: "Cancel", value: "" },
      { label: "Send", value: "yes", kind: "primary" },
    ]);
    if (!answer) return false;
    try {
      const text = KINDS[kind.value][1](body.value);
      const message = kind.value === "base64" ? { body_encoding: "base64" } : {};
      for (const [name, [input, type]] of inputs) {
        if (input.value !== "") message[name] = READ[type](input.value);
      }
      const lines = headers.value.split("\n").filter((line) => line.trim());
      if (lines.length) message.headers = Object.fromEntries(lines.map((line) => line.split(/:\s*(.*)/s).slice(0, 2)));
      if (attributes.value.trim()) message.attributes = JSON.parse(attributes.value);
      const fields = JSON.stringify(message).slice(1);
      const request = `{"messages":[{"body":${text}${fields === "}" ? "" : ","}${fields}]}`;
      const [sent] = (await post(queuePath(queue, "messages"), request)).messages;
      if (sent.dead) toast(`${sent.id} is a dead letter: its body does not fit the schema of ${queue}`, "bad");
      else toast(sent.duplicate ? `Not stored: ${sent.id} has the same key or id` : `Sent as ${sent.id}`);
      return true;
    } catch (error) {
      toast(error instanceof SyntaxError ? `The body or the attributes are not JSON: ${error.message}` : error.message, "bad");
    }
  }
}
