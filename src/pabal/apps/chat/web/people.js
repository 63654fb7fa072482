// Who is known here: names and emails by user id, who is online, and what SYSTEM messages say of them.

import { t } from "./text.js";

export class People {
  #known = new Map(); // user id to {name, email, online}; the email is known of members only

  // Take in what the gateway says of a user now.
  meet(userId, name, email, online) {
    this.#known.set(userId, { name, email, online });
  }

  // A SYSTEM message names people who may be members no longer.
  hear(message) {
    if (message.type !== "SYSTEM") return;
    const { userId, name } = systemEvent(message);
    if (name && !this.#known.has(userId)) this.meet(userId, name, "", false);
  }

  // Note who came or went; false if nobody here knows the user.
  present(userId, online) {
    const person = this.#known.get(userId);
    if (person) person.online = online;
    return Boolean(person);
  }

  get(userId) {
    return this.#known.get(userId);
  }

  nameOf(userId) {
    return this.#known.get(userId)?.name ?? t("formerMember");
  }
}

// What a SYSTEM message says, as {event, userId, name, room?}; empty when it cannot be read.
export function systemEvent(message) {
  try {
    const found = JSON.parse(message.content);
    return { ...found, name: found.name ?? found.email }; // those of earlier releases have an email
  } catch {
    return {};
  }
}

// The words of a SYSTEM message, or "".
export function systemWords(message) {
  const { event, name, room } = systemEvent(message);
  return name && ["joined", "left", "removed", "renamed"].includes(event) ? t(event, name, room) : "";
}
