// A Socket.IO client over WebSocket: protocol 5 on Engine.IO 4, namespace "/", JSON only, no binary.
//
// It connects again by itself until it is closed. What the other side did not answer when a connection ended is
// answered with NoAnswer: whoever asked knows that it may or may not have happened.

const ENGINE = { open: "0", close: "1", ping: "2", pong: "3", message: "4" };
const PACKET = { connect: "0", disconnect: "1", event: "2", ack: "3", refused: "4" };
const FIRST_DELAY = 300;
const LONGEST_DELAY = 5000;
const ANSWER_WITHIN = 10000;
const SOON = 2000;

// `cut`: the connection ended soon after the question, perhaps because of it.
export class NoAnswer extends Error {
  cut = false;
}

export class Socket {
  #address;
  #auth;
  #hooks;
  #handlers = new Map();
  #web = null;
  #wanted = false;
  #tries = 0;
  #retry = 0;
  #silence = 0;
  #patience = 0;
  #lastId = 0;
  #asked = new Map();
  connected = false;

  // `auth` returns what is sent to be let in; `hooks` has up(), down() and refused(error); after the last it tries again.
  constructor(address, auth, hooks) {
    this.#address = address;
    this.#auth = auth;
    this.#hooks = hooks;
    window.addEventListener("online", () => this.#again(0));
    window.addEventListener("offline", () => this.#drop());
    document.addEventListener("visibilitychange", () => document.hidden || this.connected || this.#again(0));
  }

  on(name, handler) {
    this.#handlers.set(name, handler);
  }

  open() {
    this.#wanted = true;
    this.#dial();
  }

  close() {
    this.#wanted = false;
    clearTimeout(this.#retry);
    this.#drop();
  }

  // Send an event and return what the other side answers to it.
  request(name, data) {
    return new Promise((resolve, reject) => {
      if (!this.connected) return reject(new NoAnswer("not connected"));
      const id = ++this.#lastId;
      const timer = setTimeout(() => this.#answer(id, reject, new NoAnswer(`no answer to ${name}`)), ANSWER_WITHIN);
      this.#asked.set(id, { resolve, reject, timer, at: Date.now() });
      this.#web.send(ENGINE.message + PACKET.event + id + JSON.stringify([name, data]));
    });
  }

  #dial() {
    clearTimeout(this.#retry);
    if (!this.#wanted || this.#web) return;
    const web = new WebSocket(this.#address);
    this.#web = web;
    this.#listen(ANSWER_WITHIN);
    web.onmessage = ({ data }) => web === this.#web && this.#frame(data);
    web.onclose = () => web === this.#web && this.#drop();
  }

  #again(delay) {
    clearTimeout(this.#retry);
    if (this.#wanted && !this.#web) this.#retry = setTimeout(() => this.#dial(), delay);
  }

  // The other side pings: when it is silent for longer than it promised, the connection is dead though open.
  #listen(patience) {
    clearTimeout(this.#silence);
    this.#patience = patience;
    this.#silence = setTimeout(() => this.#drop(), patience);
  }

  #frame(data) {
    if (typeof data !== "string") return;
    this.#listen(this.#patience);
    switch (data[0]) {
      case ENGINE.open: {
        const { pingInterval, pingTimeout } = JSON.parse(data.slice(1));
        this.#listen(pingInterval + pingTimeout);
        this.#web.send(ENGINE.message + PACKET.connect + JSON.stringify(this.#auth()));
        break;
      }
      case ENGINE.ping:
        this.#web.send(ENGINE.pong);
        break;
      case ENGINE.message:
        this.#packet(data[1], data.slice(2));
        break;
      case ENGINE.close:
        this.#drop();
    }
  }

  #packet(kind, rest) {
    if (kind === PACKET.connect) {
      this.connected = true;
      this.#tries = 0;
      this.#hooks.up();
    } else if (kind === PACKET.event) {
      const [name, data] = JSON.parse(rest.slice(rest.indexOf("[")));
      this.#handlers.get(name)?.(data);
    } else if (kind === PACKET.ack) {
      const start = rest.indexOf("[");
      const id = Number(rest.slice(0, start));
      const asked = this.#asked.get(id);
      if (asked) this.#answer(id, asked.resolve, JSON.parse(rest.slice(start))[0]);
    } else if (kind === PACKET.refused) {
      this.#hooks.refused(JSON.parse(rest));
      this.#drop();
    } else if (kind === PACKET.disconnect) {
      this.#drop();
    }
  }

  #answer(id, settle, value) {
    clearTimeout(this.#asked.get(id)?.timer);
    this.#asked.delete(id);
    settle(value);
  }

  #drop() {
    clearTimeout(this.#silence);
    const web = this.#web;
    const before = this.connected;
    this.#web = null;
    this.connected = false;
    web?.close();
    for (const [id, asked] of [...this.#asked]) {
      const none = new NoAnswer("the connection ended");
      none.cut = navigator.onLine && Date.now() - asked.at < SOON;
      this.#answer(id, asked.reject, none);
    }
    if (before) this.#hooks.down();
    const delay = Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** this.#tries++);
    this.#again(delay * (0.5 + Math.random() / 2));
  }
}
