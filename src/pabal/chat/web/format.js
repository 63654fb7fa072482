// How times, languages and links are shown.

import { el } from "./dom.js";

const clock = new Intl.DateTimeFormat(undefined, { hour: "numeric", minute: "2-digit" });
const weekday = new Intl.DateTimeFormat(undefined, { weekday: "short" });
const short = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const long = new Intl.DateTimeFormat(undefined, { weekday: "long", year: "numeric", month: "long", day: "numeric" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const DAY = 86400000;

export const timeOf = (at) => clock.format(new Date(at));
export const momentOf = (at) => full.format(new Date(at));

// How many midnights lie between a moment and now.
function daysAgo(at) {
  const midnight = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
  return Math.round((midnight(new Date()) - midnight(new Date(at))) / DAY);
}

export function dayOf(at) {
  return ["Today", "Yesterday"][daysAgo(at)] ?? long.format(new Date(at));
}

// A moment in as few letters as say enough.
export function agoOf(at) {
  const days = daysAgo(at);
  if (days <= 0) return timeOf(at);
  if (days === 1) return "Yesterday";
  return (days < 7 ? weekday : short).format(new Date(at));
}

// The language whose letter forms a text needs: Han characters differ between Korean, Japanese and Chinese fonts.
export function languageOf(text) {
  if (/[\p{Script=Hiragana}\p{Script=Katakana}]/u.test(text)) return "ja";
  if (/\p{Script=Hangul}/u.test(text)) return "ko";
  return null;
}

// A text as nodes, its web addresses as links.
export function linked(text) {
  const parts = text.split(/(https?:\/\/[^\s<>"]*[^\s<>"'.,;:!?)\]}])/u);
  return parts.map((part, at) =>
    at % 2 ? el("a", { href: part, target: "_blank", rel: "noopener noreferrer" }, part) : part,
  );
}
