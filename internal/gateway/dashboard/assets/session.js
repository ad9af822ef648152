// The token lives in this tab alone. Every request of the page goes through send.

const KEY = "tidemill-token";
/** @type {string | null} a token for when the browser refuses to store one */
let kept = null;

/** @returns {string | null} */
export function token() {
  try {
    return sessionStorage.getItem(KEY) ?? kept;
  } catch {
    return kept;
  }
}

/** @param {string | null} value */
export function keep(value) {
  kept = value;
  try {
    if (value === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, value);
  } catch {
    // Storage is off: the token lasts until the page is loaded again.
  }
}

/**
 * Sends a request with the token. If the gateway refuses the token, the person is asked for another
 * one, and the request is sent again.
 * @param {string} url
 * @param {RequestInit} [init]
 * @returns {Promise<Response>}
 */
export async function send(url, init = {}) {
  for (;;) {
    const used = token();
    const headers = new Headers(init.headers);
    if (used !== null) headers.set("Authorization", "Bearer " + used);
    const answer = await fetch(url, { ...init, headers, credentials: "omit", cache: "no-store" });
    if (answer.status !== 401) return answer;
    await answer.body?.cancel();
    if (token() === used) await askForToken(used === null ? "" : "The gateway refuses this token. It may have expired, or it was removed.");
  }
}

/** @type {Promise<void> | null} the dialog that is open */
let asking = null;

/**
 * Opens the sign-in dialog, and resolves once a token was given.
 * @param {string} reason
 * @returns {Promise<void>}
 */
export function askForToken(reason) {
  asking ??= openDialog(reason).finally(() => {
    asking = null;
  });
  return asking;
}

/**
 * @param {string} reason
 * @returns {Promise<void>}
 */
function openDialog(reason) {
  const dialog = document.createElement("dialog");
  dialog.className = "sign-in";
  dialog.setAttribute("aria-labelledby", "sign-in-title");
  const form = document.createElement("form");
  form.method = "dialog";
  const title = document.createElement("h2");
  title.id = "sign-in-title";
  title.textContent = "Sign in";
  const why = document.createElement("p");
  why.className = "problem";
  why.textContent = reason;
  why.hidden = reason === "";
  const label = document.createElement("label");
  label.textContent = "Token ";
  const input = document.createElement("input");
  input.type = "password";
  input.name = "token";
  input.required = true;
  input.autocomplete = "off";
  input.spellcheck = false;
  label.append(input);
  const hint = document.createElement("p");
  hint.className = "none";
  hint.textContent = "This tab alone keeps the token. To make one: tidemill token new NAME --role read";
  const button = document.createElement("button");
  button.textContent = "Sign in";
  form.append(title, why, label, hint, button);
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
  return new Promise((done) => {
    dialog.addEventListener("cancel", (e) => e.preventDefault());
    form.addEventListener("submit", (e) => {
      e.preventDefault();
      keep(input.value.trim());
      dialog.remove();
      done();
    });
  });
}
