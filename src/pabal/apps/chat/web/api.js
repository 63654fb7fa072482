// The REST side of the gateway. Every failure is an ApiError with the words of the gateway's error document.

import { errorWords, t } from "./text.js";

const WITHIN = 20000;

export class ApiError extends Error {
  constructor(status, error, retryAfter) {
    super(errorWords(error));
    this.status = status;
    this.code = error.code;
    this.retryAfter = retryAfter;
  }
}

export class Api {
  // `ended` is called when the gateway no longer takes our token.
  constructor({ ended }) {
    this.token = null;
    this.ended = ended;
  }

  get(path) {
    return this.#json("GET", path);
  }

  post(path, body = {}) {
    return this.#json("POST", path, JSON.stringify(body), "application/json");
  }

  upload(path, blob) {
    return this.#json("POST", path, blob, blob.type);
  }

  async blob(path) {
    return (await this.#fetch("GET", path)).blob();
  }

  async #json(method, path, body, type) {
    return (await this.#fetch(method, path, body, type)).json();
  }

  async #fetch(method, path, body, type) {
    const headers = {};
    if (type) headers["Content-Type"] = type;
    if (this.token) headers.Authorization = `Bearer ${this.token}`;
    let response;
    try {
      response = await fetch(path, { method, headers, body, signal: AbortSignal.timeout(WITHIN), cache: "no-store" });
    } catch {
      throw new ApiError(0, { code: "unreachable", message: t("unreachable") });
    }
    if (response.ok) return response;
    const failure = await failureOf(response);
    if (response.status === 401 && this.token) this.ended();
    throw failure;
  }
}

async function failureOf(response) {
  const words = { code: `http-${response.status}`, message: `The server answered ${response.status}.` };
  const document = await response.json().catch(() => ({}));
  const wait = Number(response.headers.get("Retry-After")) || 0;
  return new ApiError(response.status, { ...words, ...document.error }, wait);
}
