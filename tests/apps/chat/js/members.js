// Members of rooms, each on a socket of the socket.io-client from npm, told what to do by lines of JSON on standard
// input. Each connects to the gateways in turn: when one is gone, the next. What a member did not get an answer to, it
// sends again with the same clientMsgId, one message at a time, so that the order in which it wrote is known.
//
// The first line: {gateways: [url], members: [{name, token}], rooms: [id]}. Then {do: "send", count, size},
// {do: "report"}. It prints {ready: n}, {accepted: n} as it goes on, {sent: [[name, room, clientMsgId, number]]} when
// all is accepted, and {seen: {name: {room: [[sequence, clientMsgId, content]]}}}.

import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { io } = createRequire(`${process.argv[2]}/`)("socket.io-client"); // the folder it is installed in

const PAUSE = 150;
const ANSWER_WITHIN = 4000;
const TELL_EVERY = 25;
const FINAL = new Set(["InvalidInput", "NotMember"]);

let accepted = 0;
const say = (document) => process.stdout.write(JSON.stringify(document) + "\n");
const pause = (time) => new Promise((resolve) => setTimeout(resolve, time));

class Member {
  seen = {};
  sent = [];

  constructor({ name, token }, gateways, rooms, first) {
    Object.assign(this, { name, token, gateways, rooms, at: first });
    for (const room of rooms) this.seen[room] = [];
    this.ready = new Promise((resolve) => (this.begin = resolve));
    this.connect();
  }

  connect() {
    const url = this.gateways[this.at++ % this.gateways.length];
    this.socket = io(url, { auth: { token: this.token }, reconnection: false, forceNew: true, transports: ["websocket"] });
    this.socket.on("connect", () => this.join());
    this.socket.on("connect_error", () => this.again());
    this.socket.on("disconnect", () => this.again());
    this.socket.on("newMessage", (message) => {
      this.seen[message.roomId].push([message.sequence, message.clientMsgId, message.content]);
    });
  }

  async again() {
    this.socket.removeAllListeners();
    this.socket.disconnect();
    await pause(PAUSE);
    this.connect();
  }

  async join() {
    const socket = this.socket;
    for (const roomId of this.rooms) {
      while (socket.connected) {
        const lastSequence = this.seen[roomId].at(-1)?.[0] ?? 0;
        const answer = await socket.timeout(ANSWER_WITHIN).emitWithAck("joinRoom", { roomId, lastSequence }).catch(() => ({}));
        if (answer.success) break;
        await pause(PAUSE);
      }
    }
    if (socket.connected) this.begin();
  }

  async send(count, size) {
    for (let number = 0; number < count; number++) {
      const room = this.rooms[number % this.rooms.length];
      const clientMsgId = randomUUID();
      const content = `${this.name} ${number} `.padEnd(size, "x");
      await this.submit({ roomId: room, clientMsgId, type: "TEXT", content });
      this.sent.push([this.name, room, clientMsgId, number]);
      if (++accepted % TELL_EVERY === 0) say({ accepted });
    }
  }

  async submit(message) {
    for (;;) {
      if (this.socket.connected) {
        const answer = await this.socket.timeout(ANSWER_WITHIN).emitWithAck("sendMessage", message).catch(() => null);
        if (answer?.status === "ACCEPTED") return;
        if (FINAL.has(answer?.error?.code)) throw new Error(JSON.stringify(answer));
      }
      await pause(PAUSE);
    }
  }
}

let members = [];
for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  if (order.gateways) {
    members = order.members.map((member, at) => new Member(member, order.gateways, order.rooms, at));
    Promise.all(members.map((member) => member.ready)).then(() => say({ ready: members.length }));
  } else if (order.do === "send") {
    Promise.all(members.map((member) => member.send(order.count, order.size))).then(() =>
      say({ sent: members.flatMap((member) => member.sent) }),
    );
  } else if (order.do === "report") {
    say({ seen: Object.fromEntries(members.map((member) => [member.name, member.seen])) });
  }
}
process.exit(0);
