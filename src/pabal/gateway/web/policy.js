// The policy of a queue as a form that explains each field.

import { get, put, queuePath } from "./api.js";
import { dialog, el, toast } from "./dom.js";

const FIELDS = [
  ["visibilityTimeoutSec", "Visibility timeout, seconds", "How long a consumer has for a message before it comes back."],
  ["retry.limit", "Attempts", "After so many the message is dead."],
  ["retry.backoff", "Backoff", "How the delay between attempts grows.", ["fixed", "linear", "exponential", "full-jitter"]],
  ["retry.initialDelaySec", "First delay, seconds", "Before the second attempt."],
  ["retry.maxDelaySec", "Longest delay, seconds", "No delay between attempts is longer."],
  ["ttlSec", "Time to live, seconds", "A message that nobody takes in this time is dead; 0 is for ever."],
  ["dlq.retentionDays", "Keep dead messages, days", "Older ones are removed; 0 is for ever."],
  ["dlq.queue", "Dead-letter queue", "Gets a copy of each dead message; empty: they stay here alone."],
  ["dedupWindowSec", "Dedup window, seconds", "How long a dedup key is remembered."],
  ["doneRetentionSec", "Keep handled messages, seconds", "0 keeps only their ids for a while."],
  ["maxBytes", "Largest body, bytes", "A larger one is refused."],
  ["maxWaiting", "Most waiting messages", "Further ones are refused; 0 is no limit."],
  ["durableAcks", "Durable acks", "An ack survives a power cut too, and is slower.", "switch"],
];

const read = (document, path) => path.split(".").reduce((part, name) => part?.[name], document);

function write(document, path, value) {
  const names = path.split(".");
  const last = names.pop();
  names.reduce((part, name) => (part[name] ??= {}), document)[last] = value;
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
  const rows = FIELDS.map(([path, label, hint, kind]) => {
    const value = read(document, path);
    let input;
    if (kind === "switch") input = el("input", { type: "checkbox", checked: value === true });
    else if (kind) input = el("select", {}, kind.map((name) => el("option", { value: name, selected: name === value }, name)));
    else input = el("input", { type: path === "dlq.queue" ? "text" : "number", step: "any", min: 0, value: value ?? "" });
    inputs.set(path, [input, kind]);
    return el("label", {}, label, input, el("small", {}, hint));
  });
  for (;;) {
    const answer = await dialog(`Policy of ${queue}`, [el("div.grid", {}, rows)], [
      { label: "Cancel", value: "" },
      { label: "Save", value: "yes", kind: "primary" },
    ]);
    if (!answer) return;
    const changed = structuredClone(document);
    for (const [path, [input, kind]] of inputs) {
      if (!kind && path !== "dlq.queue" && input.value === "") continue; // a field that was cleared stays as it was
      write(changed, path, kind === "switch" ? input.checked : kind || path === "dlq.queue" ? input.value : Number(input.value));
    }
    try {
      await put(queuePath(queue, "policy"), changed);
      return toast("Saved: running consumers follow within a second");
    } catch (error) {
      toast(error.message, "bad");
    }
  }
}
