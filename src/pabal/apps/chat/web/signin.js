// The page before the chat: sign in, or make an account and be signed in with it.

import { $ } from "./dom.js";
import { t } from "./text.js";

const SHORTEST = 6; // characters of a password

export class SignIn {
  #api;
  #entered;
  #creating = false;

  constructor(api, entered) {
    this.#api = api;
    this.#entered = entered;
    $("signin-form").addEventListener("submit", (event) => this.#submit(event));
    $("signin-switch").addEventListener("click", () => this.#turn(!this.#creating));
    this.#turn(false);
  }

  show(notice = "") {
    $("signin").hidden = false;
    $("signin-notice").textContent = notice;
    $(localStorage.getItem("pabal.chat.email") ? "password" : "email").focus();
    $("email").value = localStorage.getItem("pabal.chat.email") ?? "";
  }

  #turn(creating) {
    this.#creating = creating;
    $("signin-title").textContent = t(creating ? "signUpTitle" : "signInTitle");
    $("signin-submit").textContent = t(creating ? "createAccount" : "signIn");
    $("signin-question").textContent = t(creating ? "haveAccount" : "newHere");
    $("signin-switch").textContent = t(creating ? "signIn" : "createAnAccount");
    $("password-hint").hidden = $("signup-name").hidden = !creating;
    $("password").autocomplete = creating ? "new-password" : "current-password";
    $("password").minLength = creating ? SHORTEST : 0;
    $("signin-error").textContent = "";
  }

  async #submit(event) {
    event.preventDefault();
    const account = { email: $("email").value.trim(), password: $("password").value };
    $("signin-submit").disabled = true;
    $("signin-error").textContent = "";
    try {
      const name = $("name").value.trim();
      if (this.#creating) await this.#api.post("/auth/register", { ...account, ...(name ? { name } : {}) });
      const session = await this.#api.post("/auth/login", account);
      this.#leave(session);
    } catch (failure) {
      const wait = failure.retryAfter ? t("tryAgainIn", failure.retryAfter) : "";
      $("signin-error").textContent = failure.message + wait;
      $("password").focus();
    } finally {
      $("signin-submit").disabled = false;
    }
  }

  #leave(session) {
    localStorage.setItem("pabal.chat.email", session.user.email);
    $("password").value = "";
    $("signin").hidden = true;
    this.#turn(false);
    this.#entered(session);
  }
}
