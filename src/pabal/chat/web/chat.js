// The chat of one signed-in user: rooms, people, messages and what was not stored yet, kept in step with the gateway.
//
// After every connect the outbox is sent again, the rooms are read, and each is joined from the last sequence that is
// here. It tells of changes by events: "rooms", "messages" and "typing" (detail: the room's id), "people", "link",
// "heard" (a message by somebody else came in), "trouble" (words for the user).

import { ApiError } from "./api.js";
import { BUSY, Outbox, pause } from "./outbox.js";
import { People } from "./people.js";
import { readMembers, readMissing, readNewest, readOlder, readRooms } from "./reading.js";
import { NoAnswer, Socket } from "./socket.js";

const HEARTBEAT = 20000;
const TYPING_EVERY = 2000;
const TYPING_LASTS = 4500;
const READ_AFTER = 250;
const AGAIN = 1500;
const FAR_BEHIND = 400; // messages; further behind, the newest are read instead of all that were missed

export class Chat extends EventTarget {
  rooms = new Map();
  people = new People();
  current = null;
  ready = false; // the rooms have been read once
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
    this.people.meet(user.id, user.email, true);
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
    room.messages.forEach((message) => this.people.hear(message));
    this.#tell("messages", room.id);
  }

  async #up() {
    this.#tell("link");
    clearInterval(this.#beat);
    this.#beat = setInterval(() => this.#socket.request("heartbeat", {}).catch(() => {}), HEARTBEAT);
    this.outbox.up(); // first: the gateway takes messages even while its database is down
    const link = ++this.#link;
    while (!(await this.#try(() => this.#refresh()))) {
      await pause(AGAIN);
      if (link !== this.#link || !this.linked) return;
    }
    await Promise.all([...this.rooms.values()].map((room) => this.#follow(room, link)));
    await this.#look();
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
    await readRooms(this.#api, this.rooms);
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
    if (room.tracked && room.lastSequence - room.known > FAR_BEHIND) room.reset();
    try {
      const { error } = await this.#socket.request("joinRoom", { roomId: room.id, lastSequence: room.known });
      if (!BUSY.has(error?.code)) return;
      await pause(AGAIN);
      if (link === this.#link) await this.#follow(room, link);
    } catch (failure) {
      if (!(failure instanceof NoAnswer)) throw failure; // the next connect joins again
    }
  }

  // Read what the open room needs to be shown.
  async #look() {
    const room = this.current;
    if (room) await Promise.all([this.#load(room), this.#meet(room)]);
  }

  async #load(room) {
    if (room.tracked) return this.#mend(room);
    room.tracked = true; // what comes live meanwhile is taken in
    while (!(await this.#try(() => readNewest(this.#api, room)))) {
      await pause(AGAIN);
      if (room !== this.current) return room.reset();
    }
    room.messages.forEach((message) => this.people.hear(message));
    this.#tell("messages", room.id);
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
      members.forEach(({ userId, email, online }) => this.people.meet(userId, email, online));
      room.members = members.map(({ userId }) => userId);
      this.#tell("people");
    });
  }

  #arrived(message) {
    const room = this.rooms.get(message.roomId);
    if (!room) return;
    const own = message.senderId === this.user.id;
    const fresh = room.arrived(message, own);
    if (room.tracked) room.take([message]);
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
