// Images from the gateway, which gives them to whoever shows a token: fetched, then shown from memory as blob URLs.

import { t } from "./text.js";

const KEPT = 120;
export const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const LARGEST = 10_000_000;
const REFERENCE = /^[0-9a-f]{64}$/;

export class Images {
  #api;
  #urls = new Map(); // path to a promise of its blob URL, the oldest first

  constructor(api) {
    this.#api = api;
  }

  // The id of the image that a message carries, or null when it carries none.
  static idIn(content) {
    return REFERENCE.test(content) ? content : null;
  }

  // Why a file cannot be sent, or null.
  static refusal(file) {
    if (!TYPES.includes(file.type)) return t("onlyImages");
    if (file.size > LARGEST) return t("imageTooLarge");
    return null;
  }

  async upload(file) {
    return (await this.#api.upload("/images", file)).id;
  }

  thumbnail(id) {
    return this.#url(`/images/${id}/thumbnail`);
  }

  whole(id) {
    return this.#url(`/images/${id}`);
  }

  #url(path) {
    const found = this.#urls.get(path) ?? this.#api.blob(path).then((blob) => URL.createObjectURL(blob));
    this.#urls.delete(path);
    this.#urls.set(path, found);
    found.catch(() => this.#urls.delete(path));
    if (this.#urls.size > KEPT) this.#drop(this.#urls.keys().next().value);
    return found;
  }

  #drop(path) {
    this.#urls.get(path).then(URL.revokeObjectURL, () => {});
    this.#urls.delete(path);
  }
}
