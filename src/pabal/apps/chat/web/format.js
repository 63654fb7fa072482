// How times, languages and links are shown.

import { el } from "./dom.js";
import { language, t } from "./text.js";

// The reader's own way to write times, in the language of the page.
const locale = navigator.languages.find((tag) => tag.startsWith(language)) ?? language;
const clock = new Intl.DateTimeFormat(locale, { hour: "numeric", minute: "2-digit" });
const weekday = new Intl.DateTimeFormat(locale, { weekday: "short" });
const short = new Intl.DateTimeFormat(locale, { month: "short", day: "numeric" });
const long = new Intl.DateTimeFormat(locale, { weekday: "long", year: "numeric", month: "long", day: "numeric" });
const full = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "short" });
const DAY = 86400000;

export const timeOf = (at) => clock.format(new Date(at));
export const momentOf = (at) => full.format(new Date(at));

// How many midnights lie between a moment and now.
function daysAgo(at) {
  const midnight = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
  return Math.round((midnight(new Date()) - midnight(new Date(at))) / DAY);
}

export function dayOf(at) {
  return [t("today"), t("yesterday")][daysAgo(at)] ?? long.format(new Date(at));
}

// A moment in as few letters as say enough.
export function agoOf(at) {
  const days = daysAgo(at);
  if (days <= 0) return timeOf(at);
  if (days === 1) return t("yesterday");
  return (days < 7 ? weekday : short).format(new Date(at));
}

// The language whose letter forms a text needs: Han characters differ between Korean, Japanese and Chinese fonts.
export function languageOf(text) {
  if (/[\p{Script=Hiragana}\p{Script=Katakana}]/u.test(text)) return "ja";
  if (/\p{Script=Hangul}/u.test(text)) return "ko";
  return null;
}

const PAIRS = { ")": "(", "]": "[", "}": "{" };

// A text as nodes, its web addresses as links.
export function linked(text) {
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(/https?:\/\/[^\s<>"]+/gu)) {
    const address = addressIn(found[0]);
    nodes.push(text.slice(at, found.index));
    nodes.push(el("a", { href: address, target: "_blank", rel: "noopener noreferrer" }, address));
    at = found.index + address.length;
  }
  return [...nodes, text.slice(at)].filter(Boolean);
}

// An address without what ends a sentence after it: a bracket belongs to it if it was opened in it.
function addressIn(text) {
  const count = (letter) => text.split(letter).length;
  for (;;) {
    const last = text.at(-1);
    if (!/['.,;:!?。、]/u.test(last) && !(last in PAIRS && count(last) > count(PAIRS[last]))) return text;
    text = text.slice(0, -1);
  }
}
