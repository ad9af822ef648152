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
  const other = document.createElement("p");
  other.hidden = true;
  void offerIssuer(other);
  const hint = document.createElement("p");
  hint.className = "none";
  hint.textContent = "This tab alone keeps the token. To make one: tidemill token new NAME --role read";
  const button = document.createElement("button");
  button.textContent = "Sign in";
  form.append(title, why, other, label, hint, button);
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
  return new Promise((done) => {
    dialog.addEventListener("cancel", (e) => e.preventDefault());
    form.addEventListener("submit", (e) => {
      e.preventDefault();
      keep(input.value.trim());
      dialog.close(); // gives the focus back
      dialog.remove();
      done();
    });
  });
}

const FLOW = "tidemill-sign-in";
const CALLBACK = "/ui/auth/callback";

/**
 * Offers the sign-in with the issuer, if the gateway has one.
 * @param {HTMLElement} at
 */
async function offerIssuer(at) {
  const kinds = await (await fetch("/ui/auth", { credentials: "omit", cache: "no-store" })).json();
  if (kinds.fault) at.textContent = kinds.fault;
  if (kinds.oidc) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "primary";
    button.textContent = "Sign in with " + new URL(kinds.oidc.authorize).host;
    button.addEventListener("click", () => void leave(kinds.oidc));
    at.replaceChildren(button);
  }
  at.hidden = !kinds.fault && !kinds.oidc;
}

/** @returns {string} a text that nobody can guess */
function secret() {
  return base64(crypto.getRandomValues(new Uint8Array(32)));
}

/** @param {Uint8Array} bytes */
function base64(bytes) {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/**
 * Goes to the issuer. The verifier stays in this tab: only it can exchange the code.
 * @param {{authorize: string, client: string}} to
 */
async function leave(to) {
  const flow = { state: secret(), verifier: secret(), back: location.pathname === CALLBACK ? "/" : location.pathname + location.search };
  sessionStorage.setItem(FLOW, JSON.stringify(flow));
  const challenge = base64(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(flow.verifier))));
  const url = new URL(to.authorize);
  const query = { response_type: "code", scope: "openid profile email", client_id: to.client, redirect_uri: location.origin + CALLBACK, state: flow.state, code_challenge: challenge, code_challenge_method: "S256" };
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  location.assign(url);
}

/**
 * Ends a sign-in with the issuer.
 * @returns {Promise<string | null>} the page to go on with; null if this page is not the end of a sign-in
 */
export async function comeBack() {
  if (location.pathname !== CALLBACK) return null;
  const flow = JSON.parse(sessionStorage.getItem(FLOW) ?? "null");
  sessionStorage.removeItem(FLOW);
  const query = new URLSearchParams(location.search);
  history.replaceState({}, "", "/"); // the code must not stay in the history
  if (!flow || query.get("state") !== flow.state || !query.get("code")) {
    await askForToken(query.get("error_description") ?? "The sign-in did not begin in this tab. Try it again.");
    return "/";
  }
  const body = new URLSearchParams({ code: query.get("code") ?? "", verifier: flow.verifier, redirect: location.origin + CALLBACK });
  const answer = await fetch("/ui/auth/token", { method: "POST", body, credentials: "omit" });
  const result = await answer.json();
  if (answer.ok) keep(result.token);
  else await askForToken(result.detail);
  return flow.back;
}
