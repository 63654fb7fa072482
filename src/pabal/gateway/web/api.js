// The HTTP interface of the gateway. Every failure is an ApiError with the words of the gateway.

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const session = { rights: [], signedIn: false, readOnly: false };
const listeners = { signedOut: () => {} };
export const onSignedOut = (listener) => (listeners.signedOut = listener);

// The body is a value, or a text that is sent as it is.
async function call(method, path, body) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined || typeof body === "string" ? body : JSON.stringify(body),
      cache: "no-store",
    });
  } catch {
    throw new ApiError(0, "Unreachable", "The gateway does not answer. This page tries again by itself.");
  }
  const document = await response.json().catch(() => ({}));
  if (response.ok) return document;
  const { code = `${response.status}`, message = `The gateway answered ${response.status}.` } = document.error ?? {};
  if (response.status === 401 && path !== "/session") listeners.signedOut();
  throw new ApiError(response.status, code, message);
}

export const get = (path) => call("GET", path);
export const post = (path, body) => call("POST", path, body);
export const put = (path, body) => call("PUT", path, body);
export const remove = (path) => call("DELETE", path);

export const queuePath = (queue, ...rest) => ["/queues", queue, ...rest].map((part, at) => (at ? encodeURIComponent(part) : part)).join("/");
export const may = (right) => session.rights.includes(right);

export async function loadSession() {
  const found = await get("/session");
  Object.assign(session, { rights: found.rights, signedIn: found.signed_in, readOnly: found.read_only, local: found.local });
  return session.signedIn;
}

// Do something for all that match, a slice at a time; `progress` is called with the count so far and the answer, and
// may return false to end it.
export async function each(path, selection, progress = () => {}) {
  let total = 0;
  let after = "";
  let before = selection.before; // what comes later is left alone
  do {
    const found = await post(path, { ...selection, after, ...(before ? { before } : {}) });
    total += found.ids.length;
    ({ next: after, before } = found);
    if (progress(total, found) === false) break;
  } while (after);
  return total;
}
