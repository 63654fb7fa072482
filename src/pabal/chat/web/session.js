// Who is signed in here, kept in localStorage until the token ends.

const KEY = "pabal.chat.session";

// Return {accessToken, expiresAt, user}, or null.
export function remembered() {
  const session = JSON.parse(localStorage.getItem(KEY) ?? "null");
  return session && Date.parse(session.expiresAt) > Date.now() ? session : null;
}

export function remember(session) {
  localStorage.setItem(KEY, JSON.stringify(session));
}

export function forget() {
  localStorage.removeItem(KEY);
}
