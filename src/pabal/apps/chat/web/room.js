// One room as this page knows it. `messages` is sorted by sequence and holds each sequence once; sequences in a room
// have no gaps, so that a hole shows what is missing. It is a window of the room: `hasOlder` and `hasNewer` say where
// the room goes on beyond it.

const MOST = 600; // kept while the reader is at the newest; older ones come again by scrolling
const FEWEST = 300;

export class Room {
  messages = [];
  tracked = false; // its messages are wanted: they are here or on their way
  loaded = false;
  hasOlder = true;
  hasNewer = false;
  loadingOlder = false;
  loadingNewer = false;
  mending = false;
  members = [];
  typing = new Map(); // user id to the moment it counts as stopped

  constructor(view) {
    this.id = view.id;
    this.lastSequence = 0;
    this.lastRead = 0;
    this.update(view);
  }

  update(view) {
    this.name = view.name;
    this.open = view.open;
    this.ownerId = view.ownerId;
    this.createdAt = view.createdAt;
    if (view.lastSequence >= this.lastSequence) {
      this.lastSequence = view.lastSequence;
      this.lastMessage = view.lastMessage ?? this.lastMessage ?? null;
    }
    this.lastRead = Math.max(this.lastRead, view.lastReadSequence);
  }

  get unread() {
    return Math.max(0, this.lastSequence - this.lastRead);
  }

  get activeAt() {
    return this.lastMessage?.createdAt ?? this.createdAt;
  }

  get first() {
    return this.messages[0] ?? null;
  }

  get last() {
    return this.messages.at(-1) ?? null;
  }

  // The last sequence this page has, from which the gateway is to go on.
  get known() {
    if (this.hasNewer) return this.lastSequence;
    return this.last?.sequence ?? (this.loaded ? 0 : this.lastSequence);
  }

  // Take messages in, each at its place and once.
  take(messages) {
    for (const message of messages) {
      let at = this.messages.length;
      while (at > 0 && this.messages[at - 1].sequence > message.sequence) at--;
      if (this.messages[at - 1]?.sequence !== message.sequence) this.messages.splice(at, 0, message);
    }
  }

  // Note that the room has a message, whether or not its messages are wanted here.
  arrived(message, own) {
    if (message.sequence <= this.lastSequence) return false;
    if (own && this.lastRead === message.sequence - 1) this.lastRead = message.sequence;
    this.lastSequence = message.sequence;
    this.lastMessage = message;
    return true;
  }

  // The sequence after which something is missing, or null.
  get hole() {
    if (!this.loaded) return null;
    const whole = !this.last || this.last.sequence - this.first.sequence + 1 === this.messages.length;
    if (whole) return this.known < this.lastSequence ? this.known : null;
    return this.messages.find((message, at) => this.messages[at + 1]?.sequence !== message.sequence + 1).sequence;
  }

  // The room has no messages up to this sequence any more: an operator deleted old ones.
  forgetUpTo(sequence) {
    this.messages = this.messages.filter((message) => message.sequence > sequence);
    this.hasOlder = false;
  }

  trim() {
    if (this.messages.length <= MOST) return;
    this.messages.splice(0, this.messages.length - FEWEST);
    this.hasOlder = true;
  }

  // Forget the messages: they are read anew when they are wanted.
  reset() {
    this.messages = [];
    this.tracked = this.loaded = this.hasNewer = false;
    this.hasOlder = true;
  }
}
