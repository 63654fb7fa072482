// Reading rooms, messages and members from the gateway's REST side, page by page.

import { Room } from "./room.js";

const PAGE = 50;
const LARGE_PAGE = 100;
const MOST_MEMBERS = 1000;
const CONTEXT = 12; // messages that are shown above the one that is read first

// Bring a map of rooms in step with the rooms that the user is in.
export async function readRooms(api, rooms) {
  const found = new Set();
  for await (const view of pages(api, "/rooms", "rooms", "before", PAGE)) {
    found.add(view.id);
    if (rooms.has(view.id)) rooms.get(view.id).update(view);
    else rooms.set(view.id, new Room(view));
  }
  for (const id of [...rooms.keys()]) if (!found.has(id)) rooms.delete(id);
}

// Return the members of a room as [{userId, name, email, online}].
export async function readMembers(api, room) {
  const members = [];
  for await (const member of pages(api, `/rooms/${room.id}/members`, "members", "after", LARGE_PAGE)) {
    members.push(member);
    if (members.length === MOST_MEMBERS) break;
  }
  return members;
}

export async function readNewest(api, room) {
  const page = await messages(api, room, `limit=${PAGE}`);
  room.take(page.messages);
  room.hasOlder = page.hasMore;
  room.hasNewer = false;
  room.loaded = true;
}

// Read the newest messages instead of those that are there.
export async function readEnd(api, room) {
  const page = await messages(api, room, `limit=${PAGE}`);
  room.messages = [];
  room.take(page.messages);
  room.hasOlder = page.hasMore;
  room.hasNewer = false;
}

// Read the messages around a sequence: what follows it, and a few before it.
export async function readAround(api, room, sequence) {
  const before = await messages(api, room, `before=${sequence + 1}&limit=${CONTEXT}`);
  const after = await messages(api, room, `after=${sequence}&limit=${PAGE}`);
  room.messages = [];
  room.take([...before.messages, ...after.messages]);
  room.hasOlder = before.hasMore;
  room.hasNewer = after.hasMore;
  room.loaded = true;
}

export async function readOlder(api, room) {
  const page = await messages(api, room, `before=${room.first.sequence}&limit=${PAGE}`);
  room.take(page.messages);
  room.hasOlder = page.hasMore;
}

export async function readNewer(api, room) {
  const page = await messages(api, room, `after=${room.last.sequence}&limit=${LARGE_PAGE}`);
  room.take(page.messages);
  room.hasNewer = page.hasMore;
}

// Fill the holes of a room: what fell between two answers that crossed.
export async function readMissing(api, room) {
  for (let hole = room.hole; hole !== null; hole = room.hole) {
    const page = await messages(api, room, `after=${hole}&limit=${LARGE_PAGE}`);
    if (!page.messages.length) return;
    if (page.messages[0].sequence > hole + 1) room.forgetUpTo(hole);
    room.take(page.messages);
  }
}

export function searchRoom(api, room, query, before) {
  const from = before ? `&before=${before}` : "";
  return api.get(`/rooms/${room.id}/search?q=${encodeURIComponent(query)}&limit=30${from}`);
}

function messages(api, room, query) {
  return api.get(`/rooms/${room.id}/messages?${query}`);
}

async function* pages(api, path, name, cursor, limit) {
  let next = null;
  do {
    const from = next === null ? "" : `&${cursor}=${encodeURIComponent(next)}`;
    const page = await api.get(`${path}?limit=${limit}${from}`);
    yield* page[name];
    next = page.hasMore ? page.next : null;
  } while (next !== null);
}
