// Who is signed in here, kept in localStorage until the token ends, and the token renewed while it is used.

const KEY = "pabal.chat.session";

// Return {accessToken, expiresAt, user, since}, or null.
export function remembered() {
  const session = JSON.parse(localStorage.getItem(KEY) ?? "null");
  return session && Date.parse(session.expiresAt) > Date.now() ? session : null;
}

export function remember(session) {
  localStorage.setItem(KEY, JSON.stringify({ since: Date.now(), ...session }));
}

export function forget() {
  localStorage.removeItem(KEY);
}

// Whether half of the token's time is over.
export function isOld({ since, expiresAt }) {
  return Date.now() > ((since ?? 0) + Date.parse(expiresAt)) / 2;
}

// Call `gone()` when another tab signs out, and `renewed(session)` when it has another token.
export function watchTabs({ gone, renewed }) {
  window.addEventListener("storage", ({ key, newValue }) => {
    if (key !== KEY && key !== null) return;
    const session = JSON.parse(newValue ?? "null");
    if (session) renewed(session);
    else gone();
  });
}
