// Reading rooms, messages and members from the gateway's REST side, page by page.

import { Room } from "./room.js";

const PAGE = 50;
const LARGE_PAGE = 100;
const MOST_MEMBERS = 1000;

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

// Return the members of a room as [{userId, email, online}].
export async function readMembers(api, room) {
  const members = [];
  for await (const member of pages(api, `/rooms/${room.id}/members`, "members", "after", LARGE_PAGE)) {
    members.push(member);
    if (members.length === MOST_MEMBERS) break;
  }
  return members;
}

export async function readNewest(api, room) {
  const page = await api.get(`/rooms/${room.id}/messages?limit=${PAGE}`);
  room.take(page.messages);
  room.hasOlder = page.hasMore;
  room.loaded = true;
}

export async function readOlder(api, room) {
  const page = await api.get(`/rooms/${room.id}/messages?before=${room.first.sequence}&limit=${PAGE}`);
  room.take(page.messages);
  room.hasOlder = page.hasMore;
}

// Fill the holes of a room: what fell between two answers that crossed.
export async function readMissing(api, room) {
  for (let hole = room.hole; hole !== null; hole = room.hole) {
    const page = await api.get(`/rooms/${room.id}/messages?after=${hole}&limit=${LARGE_PAGE}`);
    if (!page.messages.length) return;
    room.take(page.messages);
  }
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
