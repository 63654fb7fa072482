// Who is known here: emails by user id, who is online, and what SYSTEM messages say of them.

export class People {
  #known = new Map(); // user id to {email, online}

  // Take in what the gateway says of a user now.
  meet(userId, email, online) {
    this.#known.set(userId, { email, online });
  }

  // A SYSTEM message names people who may be members no longer.
  hear(message) {
    if (message.type !== "SYSTEM") return;
    const { userId, email } = systemEvent(message);
    if (email && !this.#known.has(userId)) this.#known.set(userId, { email, online: false });
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
    return this.#known.get(userId)?.email.split("@")[0] ?? "Former member";
  }
}

// What a SYSTEM message says, as {event, userId, email}; empty when it cannot be read.
export function systemEvent(message) {
  try {
    return JSON.parse(message.content);
  } catch {
    return {};
  }
}
