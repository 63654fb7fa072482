// The chat of one signed-in user: rooms, people, messages and what was not stored yet, kept in step with the gateway.
//
// After every connect the outbox is sent again, the rooms are read, and each is joined from the last sequence that is
// here. It tells of changes by events: "rooms", "messages" and "typing" (detail: the room's id), "people", "link",
// "heard" (a message by somebody else came in), "behind" (so much was missed that reading goes on where it was),
// "trouble" (words for the user).

import { ApiError } from "./api.js";
import { BUSY, Outbox, pause } from "./outbox.js";
import { People } from "./people.js";
import {
  readAround,
  readMembers,
  readMissing,
  readNewer,
  readEnd,
  readNewest,
  readOlder,
  readRooms,
  searchRoom,
} from "./reading.js";
import { isOld, remember, remembered } from "./session.js";
import { NoAnswer, Socket } from "./socket.js";

const HEARTBEAT = 20000;
const TYPING_EVERY = 2000;
const TYPING_LASTS = 4500;
const READ_AFTER = 250;
const AGAIN = 1500;
const FAR_BEHIND = 400; // messages; further behind, they are read by scrolling instead of all at once

export class Chat extends EventTarget {
  rooms = new Map();
  people = new People();
  current = null;
  ready = false; // the rooms have been read once
  failed = false; // they could not be read
  #api;
  #socket;
  #reads = new Map();
  #typedAt = 0;
  #beat = 0;
  #link = 0; // counts connections, so that what belongs to an earlier one ends

  constructor(api, user, { ended }) {
    super();
    this.#api = api;
    this.user = user;
    this.people.meet(user.id, user.name ?? user.email, user.email, true);
    this.outbox = new Outbox(user.id, (entry) => this.#submit(entry), (roomId) => this.#tell("messages", roomId));
    const address = new URL("socket.io/?EIO=4&transport=websocket", document.baseURI);
    address.protocol = address.protocol.replace("http", "ws");
    this.#socket = new Socket(address, () => ({ token: api.token }), {
      up: () => this.#up(),
      down: () => this.#down(),
      refused: (error) => this.#refused(error),
    });
    this.#socket.on("newMessage", (message) => this.#arrived(message));
    this.#socket.on("messagePersisted", ({ clientMsgId }) => this.outbox.confirmed(clientMsgId));
    this.#socket.on("messageRejected", ({ clientMsgId, reason }) => this.outbox.rejected(clientMsgId, reason));
    this.#socket.on("presence", ({ userId, online }) => this.people.present(userId, online) && this.#tell("people"));
    this.#socket.on("typing", ({ roomId, userId }) => this.#typing(roomId, userId));
    this.#socket.on("membership", ({ roomId, member }) => this.#belongs(roomId, member));
    this.#socket.on("read", ({ roomId, lastReadSequence }) => this.#readElsewhere(roomId, lastReadSequence));
    this.#socket.on("roomRenamed", ({ roomId, name }) => this.#renamed(roomId, name));
    this.#socket.on("expired", ended);
  }

  get linked() {
    return this.#socket.connected;
  }

  async start() {
    this.#socket.open();
    await this.#try(() => this.#refresh());
  }

  stop() {
    clearInterval(this.#beat);
    this.#socket.close();
  }

  // Rooms by their last activity, the newest first.
  get sorted() {
    return [...this.rooms.values()].sort((one, other) => (one.activeAt < other.activeAt ? 1 : -1));
  }

  async open(roomId) {
    this.current = this.rooms.get(roomId) ?? null;
    this.#tell("rooms");
    await this.#look();
  }

  async create(name, open) {
    const { id } = await this.#api.post("/rooms", { name, open });
    await this.#entered(id);
    return id;
  }

  async join(roomId, invitation) {
    await this.#api.post(`/rooms/${roomId}/join`, invitation ? { invitation } : {}).catch((failure) => {
      if (failure.code !== "AlreadyMember") throw failure;
    });
    await this.#entered(roomId);
  }

  async leave(roomId) {
    await this.#api.post(`/rooms/${roomId}/leave`);
    this.rooms.delete(roomId);
    if (this.current?.id === roomId) this.current = null;
    this.#tell("rooms");
  }

  invite(roomId) {
    return this.#api.post(`/rooms/${roomId}/invitations`);
  }

  async invitations(roomId) {
    return (await this.#api.get(`/rooms/${roomId}/invitations`)).invitations;
  }

  revoke(roomId, id) {
    return this.#api.post(`/rooms/${roomId}/invitations/${id}/revoke`);
  }

  look(invitation) {
    return this.#api.post("/invitations/look", { invitation });
  }

  async rename(room, name) {
    await this.#api.post(`/rooms/${room.id}/rename`, { name });
    this.#renamed(room.id, name);
  }

  async remove(room, userId) {
    await this.#api.post(`/rooms/${room.id}/members/${userId}/remove`);
    await this.#meet(room);
  }

  search(room, query, before) {
    return searchRoom(this.#api, room, query, before);
  }

  async changeName(name) {
    this.user = { ...this.user, ...(await this.#api.post("/me/name", { name })) };
    remember({ ...remembered(), user: this.user });
    this.people.meet(this.user.id, this.user.name, this.user.email, true);
    this.#tell("people");
  }

  changePassword(password, newPassword) {
    return this.#api.post("/me/password", { password, newPassword });
  }

  async sessions() {
    return (await this.#api.get("/sessions")).sessions;
  }

  endSession(id) {
    return this.#api.post(`/sessions/${id}/end`);
  }

  // Another token of the same session: this tab or another one renewed it.
  renewed(session) {
    this.#api.token = session.accessToken;
    if (this.linked) this.#socket.request("renew", { token: session.accessToken }).catch(() => {});
  }

  // The user is writing in the open room.
  writes() {
    if (!this.linked || !this.current || Date.now() - this.#typedAt < TYPING_EVERY) return;
    this.#typedAt = Date.now();
    this.#socket.request("typing", { roomId: this.current.id }).catch(() => {});
  }

  // The user has seen the room up to this message.
  seen(room, message) {
    if (message.sequence <= room.lastRead) return;
    room.lastRead = message.sequence;
    this.#tell("rooms");
    clearTimeout(this.#reads.get(room.id));
    const tell = () => this.#api.post(`/rooms/${room.id}/read`, { lastReadMessageId: message.id }).catch(() => {});
    this.#reads.set(room.id, setTimeout(tell, READ_AFTER));
  }

  async older(room) {
    if (!room.loaded || !room.hasOlder || room.loadingOlder) return;
    room.loadingOlder = true;
    await this.#try(() => readOlder(this.#api, room));
    room.loadingOlder = false;
    this.#heard(room);
  }

  async newer(room) {
    if (!room.loaded || !room.hasNewer || room.loadingNewer) return;
    room.loadingNewer = true;
    await this.#try(() => readNewer(this.#api, room));
    room.loadingNewer = false;
    this.#heard(room);
    if (!room.hasNewer) await this.#mend(room);
  }

  // Read a room around a sequence, or its end; call `begin` when its messages are those. If the server does not answer,
  // the room stays as it is.
  async jump(room, sequence, begin) {
    const read = sequence === null ? readEnd : (api, wanted) => readAround(api, wanted, sequence);
    if (!(await this.#try(() => read(this.#api, room)))) return;
    begin();
    this.#heard(room);
    await this.#mend(room);
  }

  async #up() {
    this.#tell("link");
    clearInterval(this.#beat);
    this.#beat = setInterval(() => this.#alive(), HEARTBEAT);
    this.#renewIfOld();
    this.outbox.up(); // first: the gateway takes messages even while its database is down
    const link = ++this.#link;
    while (!(await this.#try(() => this.#refresh()))) {
      await pause(AGAIN);
      if (link !== this.#link || !this.linked) return;
    }
    await Promise.all([...this.rooms.values()].map((room) => this.#follow(room, link)));
    await this.#look();
  }

  #alive() {
    this.#socket.request("heartbeat", {}).catch(() => {});
    this.#renewIfOld();
  }

  // A token is renewed when half of its time is over, so that nobody who uses the page is signed out.
  async #renewIfOld() {
    const session = remembered();
    if (!session || !isOld(session)) return;
    await this.#try(async () => {
      const next = await this.#api.post("/auth/renew");
      remember(next);
      this.renewed(next);
    });
  }

  async #belongs(roomId, member) {
    if (member && !this.rooms.has(roomId)) await this.#try(() => this.#entered(roomId));
    if (member || !this.rooms.has(roomId)) return;
    this.rooms.delete(roomId);
    if (this.current?.id === roomId) this.current = null;
    this.#tell("rooms");
  }

  #readElsewhere(roomId, sequence) {
    const room = this.rooms.get(roomId);
    if (!room || sequence <= room.lastRead) return;
    room.lastRead = sequence;
    this.#tell("rooms");
  }

  #renamed(roomId, name) {
    const room = this.rooms.get(roomId);
    if (room) room.name = name;
    this.#tell("rooms");
  }

  #down() {
    clearInterval(this.#beat);
    this.outbox.down();
    this.#tell("link");
  }

  // The gateway turned us away: with a token that has ended the call says so, otherwise it is tried again.
  #refused(error) {
    this.#api.get("/me").then(() => this.#tell("trouble", error.message), () => {});
  }

  async #refresh() {
    try {
      await readRooms(this.#api, this.rooms);
      this.failed = false;
    } catch (failure) {
      this.failed = true;
      this.#tell("rooms");
      throw failure;
    }
    if (this.current && !this.rooms.has(this.current.id)) this.current = null;
    this.ready = true;
    this.#tell("rooms");
  }

  async #entered(roomId) {
    await this.#refresh();
    const room = this.rooms.get(roomId);
    if (room && this.linked) await this.#follow(room, this.#link);
  }

  // Have the gateway send what is missing and what comes.
  async #follow(room, link) {
    if (room.tracked && room.lastSequence - room.known > FAR_BEHIND) this.#fallBehind(room);
    try {
      const { error } = await this.#socket.request("joinRoom", { roomId: room.id, lastSequence: room.known });
      if (!BUSY.has(error?.code)) return;
      await pause(AGAIN);
      if (link === this.#link) await this.#follow(room, link);
    } catch (failure) {
      if (!(failure instanceof NoAnswer)) throw failure; // the next connect joins again
    }
  }

  // Much was missed: the open room goes on where it was, others begin at their first unread message.
  #fallBehind(room) {
    if (room !== this.current) return room.reset();
    room.hasNewer = true;
    this.#tell("behind", room.id);
  }

  // Read what the open room needs to be shown.
  async #look() {
    const room = this.current;
    if (room) await Promise.all([this.#load(room), this.#meet(room)]);
  }

  async #load(room) {
    if (room.tracked) return this.#mend(room);
    room.tracked = true; // what comes live meanwhile is taken in
    const read = room.unread ? () => readAround(this.#api, room, room.lastRead) : () => readNewest(this.#api, room);
    while (!(await this.#try(read))) {
      await pause(AGAIN);
      if (room !== this.current) return room.reset();
    }
    this.#heard(room);
    await this.#mend(room);
  }

  async #mend(room) {
    if (room.mending || room.hole === null) return;
    room.mending = true;
    for (;;) {
      await this.#try(() => readMissing(this.#api, room));
      this.#tell("messages", room.id);
      if (room.hole === null || !this.linked) break; // the next connect begins again
      await pause(AGAIN);
    }
    room.mending = false;
  }

  async #meet(room) {
    await this.#try(async () => {
      const members = await readMembers(this.#api, room);
      members.forEach(({ userId, name, email, online }) => this.people.meet(userId, name, email, online));
      room.members = members.map(({ userId }) => userId);
      this.#tell("people");
    });
  }

  // Messages were read: learn the names in them, also of those who left.
  #heard(room) {
    room.messages.forEach((message) => this.people.hear(message));
    this.#tell("messages", room.id);
    const unknown = [...new Set(room.messages.map((message) => message.senderId))].filter((id) => !this.people.get(id));
    if (!unknown.length) return;
    this.#try(async () => {
      const { users } = await this.#api.get(`/rooms/${room.id}/users?ids=${unknown.slice(0, 100)}`);
      users.forEach(({ userId, name }) => this.people.get(userId) ?? this.people.meet(userId, name, "", false));
      if (users.length) this.#tell("people");
    });
  }

  #arrived(message) {
    const room = this.rooms.get(message.roomId);
    if (!room || message.sequence === null) return; // of a foreign worker: it is read when it has its place
    const own = message.senderId === this.user.id;
    const fresh = room.arrived(message, own);
    if (room.tracked && !room.hasNewer) room.take([message]);
    if (own) this.outbox.stored(message.clientMsgId);
    room.typing.delete(message.senderId);
    this.people.hear(message);
    if (message.type === "SYSTEM" && room === this.current) this.#meet(room);
    this.#mend(room);
    this.#tell("messages", room.id);
    this.#tell("rooms");
    if (fresh && !own) this.#tell("heard", { room, message });
  }

  #typing(roomId, userId) {
    const room = this.rooms.get(roomId);
    if (!room || userId === this.user.id) return;
    room.typing.set(userId, Date.now() + TYPING_LASTS);
    this.#tell("typing", roomId);
    setTimeout(() => {
      if (room.typing.get(userId) <= Date.now()) room.typing.delete(userId);
      this.#tell("typing", roomId);
    }, TYPING_LASTS);
  }

  #submit({ roomId, clientMsgId, type, content }) {
    return this.#socket.request("sendMessage", { roomId, clientMsgId, type, content });
  }

  // Do what may fail at the gateway; false, and words for the user, if it did.
  async #try(work) {
    try {
      await work();
      return true;
    } catch (failure) {
      if (!(failure instanceof ApiError)) throw failure;
      if (failure.status !== 401) this.#tell("trouble", failure.message);
      return false;
    }
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
