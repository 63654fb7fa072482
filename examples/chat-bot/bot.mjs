// A bot for the chat with socket.io-client: answers `!echo TEXT` with the text. `node bot.mjs ADDRESS EMAIL PASSWORD`

import { createHash } from "node:crypto";
import { createRequire } from "node:module";

const { io } = createRequire(process.env.NODE_FROM ?? import.meta.url)("socket.io-client");
const [address, email, password] = process.argv.slice(2);
const handled = new Map(); // room id to the last sequence

async function rest(path, body, token) {
  const headers = { "Content-Type": "application/json", ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  const options = body ? { method: "POST", body: JSON.stringify(body), headers } : { headers };
  return (await fetch(address + path, options)).json();
}

await rest("/auth/register", { email, password }); // an error if it is there, which does not matter
const { accessToken, user } = await rest("/auth/login", { email, password });
const socket = io(address, { auth: { token: accessToken }, transports: ["websocket"] });

function join(roomId, lastSequence) {
  if (!handled.has(roomId)) handled.set(roomId, lastSequence);
  socket.emit("joinRoom", { roomId, lastSequence: handled.get(roomId) }, () => {});
}

// The id of an answer follows from that of the message: an answer that is sent again is stored once.
function answerId(messageId) {
  const hex = createHash("sha256").update(`echo ${messageId}`).digest("hex");
  return hex.slice(0, 32).replace(/^(.{8})(.{4}).(.{3}).(.{3})(.{12})/, "$1-$2-5$3-8$4-$5").slice(0, 36);
}

socket.on("connect", async () => {
  const { rooms } = await rest("/rooms?limit=100", null, accessToken);
  rooms.forEach(({ id, lastSequence }) => join(id, lastSequence));
  console.log("listening");
});
socket.on("membership", ({ roomId, member }) => member && join(roomId, 0));
socket.on("newMessage", ({ id, roomId, sequence, senderId, type, content }) => {
  handled.set(roomId, Math.max(handled.get(roomId) ?? 0, sequence ?? 0));
  if (type !== "TEXT" || senderId === user.id || !content.startsWith("!echo ")) return;
  const answer = { roomId, clientMsgId: answerId(id), content: content.slice(6) };
  const send = () =>
    socket.timeout(10000).emit("sendMessage", answer, (late, ack) => {
      if (late || ["TooOften", "Unavailable"].includes(ack.error?.code)) setTimeout(send, 1000);
    });
  send();
});
setInterval(() => socket.connected && socket.emit("heartbeat", {}, () => {}), 20000);
