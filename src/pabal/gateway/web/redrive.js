// Redriving dead messages: where to, how fast, how far it is, and the button that stops it.

import { each, queuePath } from "./api.js";
import { dialog, el, fill } from "./dom.js";
import { count } from "./format.js";

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

// Redrive a selection and show the progress in `place`; return how many were redriven, and why others were not. It ends
// when the place is shown no more: nothing goes on that cannot be seen and stopped.
export async function runRedrive(queue, selection, total, place) {
  let stopped = false;
  const bar = el("progress", { max: Math.max(1, total), value: 0, "aria-label": "Redriven" });
  const words = el("span", { role: "status" }, `0 of ${count(total)} redriven`);
  const stop = el("button", { type: "button", onclick: () => ((stopped = true), (stop.disabled = true), (stop.textContent = "Stopping …")) }, "Stop");
  fill(place, bar, words, stop);
  place.hidden = false;
  const kept = new Map();
  try {
    const done = await each(queuePath(queue, "redrive"), selection, (so, found) => {
      bar.value = so;
      words.textContent = `${count(so)} of ${count(total)} redriven${selection.to ? ` to ${selection.to}` : ""}`;
      for (const [id, why] of Object.entries(found.kept)) kept.set(id, why);
      stopped ||= !place.isConnected;
      return !stopped;
    });
    return { done, kept, stopped: stopped && done < total };
  } finally {
    place.hidden = true;
  }
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
