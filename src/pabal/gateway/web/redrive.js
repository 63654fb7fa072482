// Redriving dead messages, and sending moved ones back: where to, how fast, how far it is, and the button that stops it.

import { each, queuePath } from "./api.js";
import { dialog, el, fill } from "./dom.js";
import { count, messages } from "./format.js";

// Ask for the queue and the rate; null if it was closed. `which` says how many of what.
export async function askRedrive(queue, queues, which, total, { paced = true } = {}) {
  const others = queues.filter((name) => name !== queue);
  const target = el("select", { name: "target" }, el("option", { value: "" }, `${queue} (as before)`), others.map((name) => el("option", { value: name }, name)));
  const rate = el("input", { name: "rate", type: "number", min: 0.1, max: 10000, step: "any", inputmode: "decimal", placeholder: "as fast as it goes" });
  const answer = await dialog(
    "Redrive",
    [
      el("p", {}, `Make ${which} of ${queue} ready again? Attempts are counted from zero.`),
      el("label", {}, "To the queue", target, el("small", {}, "Ids and all fields are kept in another queue too.")),
      paced ? el("label", {}, "Messages a second", rate, el("small", {}, "Leave it empty to send them at once. You can stop it at any time.")) : "",
    ],
    [
      { label: "Cancel", value: "" },
      { label: `Redrive ${count(total)}`, value: "yes", kind: "primary" },
    ],
  );
  return answer ? { ...(target.value ? { to: target.value } : {}), ...(rate.value ? { rate: Number(rate.value) } : {}) } : null;
}

const DONE = { redrive: "redriven", "send-back": "sent back" };

// Redrive a selection, or send it back, and show the progress in `place`; return how many went, and why others did not.
// It ends when the place is shown no more: nothing goes on that cannot be seen and stopped.
export async function runRedrive(queue, selection, total, place, verb = "redrive") {
  let stopped = false;
  const bar = el("progress", { max: Math.max(1, total), value: 0, "aria-label": verb === "redrive" ? "Redriven" : "Sent back" });
  const words = el("span", { role: "status" }, `0 of ${count(total)} ${DONE[verb]}`);
  const stop = el("button", { type: "button", onclick: () => ((stopped = true), (stop.disabled = true), (stop.textContent = "Stopping …")) }, "Stop");
  fill(place, bar, words, stop);
  place.hidden = false;
  const kept = new Map();
  try {
    const done = await each(queuePath(queue, verb), selection, (so, found) => {
      bar.value = so;
      words.textContent = `${count(so)} of ${count(total)} ${DONE[verb]}${selection.to ? ` to ${selection.to}` : ""}`;
      for (const [id, why] of Object.entries(found.kept)) kept.set(id, why);
      stopped ||= !place.isConnected;
      return !stopped;
    });
    return { done, kept, stopped: stopped && done < total };
  } finally {
    place.hidden = true;
  }
}

// The queue from which its policy moved a message to this one, or "".
export const movedFrom = (message, queue) => {
  const source = message.headers?.["source-queue"] ?? "";
  return source === queue ? "" : source;
};

// Count the messages of a selection that were moved to this queue, by the queue that they came from.
export async function countMoved(queue, selection) {
  const sources = new Map();
  await each(queuePath(queue, "send-back"), { ...selection, dry_run: true }, (so, found) => {
    for (const [name, number] of Object.entries(found.sources)) sources.set(name, (sources.get(name) ?? 0) + number);
  });
  return sources;
}

// Ask before messages go back; `sources` has how many for each queue.
export async function askSendBack(queue, sources) {
  const parts = [...sources].map(([name, number]) => `${messages(number)} to ${name}`);
  const total = [...sources.values()].reduce((sum, number) => sum + number, 0);
  return dialog(
    "Send back",
    [
      el("p", {}, `Send ${parts.join(" and ")}? They leave ${queue}.`),
      el("p.soft", {}, "Their attempts are counted from zero. Each has a new id, and its first one in the header original-id."),
    ],
    [
      { label: "Cancel", value: "" },
      { label: `Send back ${count(total)}`, value: "yes", kind: "primary" },
    ],
  );
}

export function sendBackWords({ done, kept, stopped }, total, to) {
  const words = `${count(done)} sent back to ${to}`;
  if (stopped) return [`Stopped: ${words}, ${count(total - done)} left alone`, "good"];
  if (done === total) return [words, "good"];
  const [why = "they do not wait any more"] = kept.values();
  return [`${count(done)} of ${count(total)} sent back to ${to}; the others are not: ${why}`, done ? "good" : "bad"];
}

// What to tell after it: [words, kind of the toast].
export function redriveWords({ done, kept, stopped }, total, to) {
  const ready = `${count(done)} ready again${to ? ` in ${to}` : ""}`;
  if (stopped) return [`Stopped: ${ready}, ${count(total - done)} left alone`, "good"];
  if (done === total) return [ready, "good"];
  const [first = ""] = kept.values();
  const why = first || "they are no longer dead";
  return [`${count(done)} of ${count(total)} ready again${to ? ` in ${to}` : ""}; the others are not: ${why}`, done ? "good" : "bad"];
}
