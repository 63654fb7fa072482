// The policy of a queue as a form that explains each field.

import { get, put, queuePath } from "./api.js";
import { dialog, el, toast } from "./dom.js";

// Path in the policy document, label, hint, and what it is: a number if nothing is said, or the values to choose from.
const FIELDS = [
  ["visibilityTimeoutSec", "Visibility timeout, seconds", "How long a consumer has for a message before it comes back."],
  ["retry.limit", "Attempts", "After so many the message is dead."],
  ["retry.backoff", "Backoff", "How the delay between attempts grows.", ["fixed", "linear", "exponential", "full-jitter"]],
  ["retry.initialDelaySec", "First delay, seconds", "Before the second attempt."],
  ["retry.maxDelaySec", "Longest delay, seconds", "No delay between attempts is longer."],
  ["ttlSec", "Time to live, seconds", "A message that nobody takes in this time is dead; 0 is for ever."],
  ["dlq.queue", "Dead-letter queue", "Gets a copy of each dead message, or the message itself if it is moved. Empty: dead messages stay here alone.", "text"],
  ["dlq.move", "Move failed messages", "A message without attempts left goes to the dead-letter queue itself, ready for consumers there. Off: it stays here as dead, with a copy there.", "switch"],
  ["dlq.retentionDays", "Keep dead messages, days", "Older ones are removed; 0 is for ever."],
];
const MORE = [
  ["dlq.enabled", "Keep dead messages", "Off: a message without attempts left is dropped.", "switch"],
  ["retry.poisonLimit", "Poison limit", "Dead after so many failures in a row with the same reason; 0 is never."],
  ["dedupWindowSec", "Dedup window, seconds", "How long a dedup key is remembered."],
  ["doneRetentionSec", "Keep handled messages, seconds", "0 keeps only their ids for a while."],
  ["maxBytes", "Largest body, bytes", "A larger one is refused."],
  ["maxWaiting", "Most waiting messages", "Further ones are refused; 0 is no limit."],
  ["durableAcks", "Durable acks", "An ack survives a power cut too, and is slower.", "switch"],
  ["onInvalid", "A body that does not fit", "Refused, or stored as dead. Needs a schema or rules.", ["refuse", "dead-letter"]],
];
const SCHEMAS = [
  ["schema", "JSON Schema of bodies", "Checked at publish. Empty: any body.", "json"],
  ["messageSchema", "Rules for the fields of bodies", "An object with a list of rules, see the page on policies. Empty: none.", "json"],
];

const read = (document, path) => path.split(".").reduce((part, name) => part?.[name], document);

function write(document, path, value) {
  const names = path.split(".");
  const last = names.pop();
  names.reduce((part, name) => (part[name] ??= {}), document)[last] = value;
}

function makeInput(path, kind, value) {
  if (kind === "switch") return el("input", { type: "checkbox", name: path, checked: value === true });
  if (Array.isArray(kind)) return el("select", { name: path }, kind.map((name) => el("option", { value: name, selected: name === value }, name)));
  if (kind !== "json") return el("input", { type: kind ?? "number", name: path, step: "any", min: 0, value: value ?? "", autocomplete: "off" });
  const input = el("textarea", { name: path, rows: 4, spellcheck: "false" });
  input.value = value ? JSON.stringify(value, null, 2) : "";
  return input;
}

function valueIn(input, kind) {
  if (kind === "switch") return input.checked;
  if (kind === "json") return input.value.trim() ? JSON.parse(input.value) : null;
  return kind ? input.value.trim() : Number(input.value);
}

export async function askPolicy(queue) {
  let document;
  try {
    const now = await get(queuePath(queue));
    if (!now.policy) return toast(`The policy cannot be read: ${now.fault}`, "bad");
    document = now.policy;
  } catch (error) {
    return toast(error.message, "bad");
  }
  const inputs = new Map();
  const row = ([path, label, hint, kind]) => {
    const input = makeInput(path, kind, read(document, path));
    inputs.set(path, [input, kind]);
    return el("label", {}, label, input, el("small", {}, hint));
  };
  const form = [el("div.grid", {}, FIELDS.map(row)), el("details", {}, el("summary", {}, "More"), el("div.grid", {}, MORE.map(row)), SCHEMAS.map(row))];
  const [[letters], [move]] = [inputs.get("dlq.queue"), inputs.get("dlq.move")];
  const limit = () => {
    move.disabled = !letters.value.trim(); // without a queue nothing can be moved
    if (move.disabled) move.checked = false;
  };
  letters.addEventListener("input", limit);
  limit();
  for (;;) {
    const answer = await dialog(`Policy of ${queue}`, form, [
      { label: "Cancel", value: "" },
      { label: "Save", value: "yes", kind: "primary" },
    ]);
    if (!answer) return;
    try {
      const changed = structuredClone(document);
      for (const [path, [input, kind]] of inputs) {
        // A number that was cleared stays as it was.
        if (kind || input.value !== "") write(changed, path, valueIn(input, kind));
      }
      await put(queuePath(queue, "policy"), changed);
      return toast("Saved: running consumers follow within a second");
    } catch (error) {
      toast(error instanceof SyntaxError ? `A schema is not JSON: ${error.message}` : error.message, "bad");
    }
  }
}
