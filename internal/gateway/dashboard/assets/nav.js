// Links and forms without loading the whole page: the new page is fetched with the token, and its main
// part replaces the old one.

import { follow } from "./live.js";
import { keep, send, token } from "./session.js";

/** @type {AbortController | null} the navigation that is under way */
let going = null;

/** @param {URL} url */
function isPage(url) {
  return url.origin === location.origin && (url.pathname === "/" || (url.pathname.startsWith("/ui/") && !url.pathname.startsWith("/ui/assets/")));
}

/**
 * Shows another page.
 * @param {string} to
 * @param {{body?: URLSearchParams, history?: "push" | "replace" | "none", scroll?: number}} [how]
 */
export async function go(to, how = {}) {
  const url = new URL(to, location.href);
  going?.abort();
  const mine = (going = new AbortController());
  const main = document.getElementById("main");
  main?.setAttribute("aria-busy", "true");
  try {
    const answer = await send(url.pathname + url.search, { method: how.body ? "POST" : "GET", body: how.body, signal: mine.signal, headers: { Accept: "text/html" } });
    const text = await answer.text();
    if (mine.signal.aborted) return;
    const landed = new URL(answer.url);
    landed.hash = url.hash;
    if (how.history === "push" || (how.history === undefined && landed.href !== location.href)) {
      history.replaceState({ scroll: scrollY }, "");
      history.pushState({}, "", landed.href);
    } else if (how.history === "replace") history.replaceState({}, "", landed.href);
    swap(new DOMParser().parseFromString(text, "text/html"), how.scroll ?? 0);
  } catch (e) {
    if (!mine.signal.aborted) fail(String(e));
  } finally {
    if (going === mine) document.getElementById("main")?.removeAttribute("aria-busy");
  }
}

/**
 * Puts the parts of a fetched page in place, and moves the focus to its heading.
 * @param {Document} page
 * @param {number} scroll
 */
function swap(page, scroll) {
  document.title = page.title;
  for (const id of ["nav", "top"]) {
    const [old, fresh] = [document.getElementById(id), page.getElementById(id)];
    if (old && fresh && !old.isEqualNode(fresh) && !(id === "top" && old.contains(document.activeElement))) old.replaceWith(fresh);
  }
  document.body.toggleAttribute("data-unknown", page.body.hasAttribute("data-unknown"));
  const live = page.body.dataset.live;
  if (live) document.body.dataset.live = live;
  const fresh = page.getElementById("main");
  if (!fresh) {
    fail("the gateway sent no page");
    return;
  }
  document.getElementById("main")?.replaceWith(fresh);
  const focus = document.querySelector("main [autofocus], main h1");
  if (focus instanceof HTMLElement) {
    if (focus.tagName === "H1") focus.tabIndex = -1;
    focus.focus({ preventScroll: true });
  }
  scrollTo(0, scroll);
  announce(document.title);
  follow();
}

/** @param {string} words */
export function announce(words) {
  const at = document.getElementById("announce");
  if (at) at.textContent = words;
}

/** @param {string} reason */
function fail(reason) {
  const box = document.createElement("div");
  box.className = "problem";
  box.setAttribute("role", "alert");
  box.textContent = "The page cannot be loaded: " + reason + ". Check that the gateway runs, and try the link again.";
  document.getElementById("main")?.prepend(box);
}

/** Takes over links, forms and the history. */
export function takeOver() {
  history.scrollRestoration = "manual";
  addEventListener("popstate", (e) => void go(location.href, { history: "none", scroll: e.state?.scroll ?? 0 }));
  document.addEventListener("click", (e) => {
    if (e.defaultPrevented || e.button !== 0 || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey || !(e.target instanceof Element)) return;
    if (e.target.closest("[data-sign-out]")) {
      keep(null);
      location.assign("/");
      return;
    }
    const link = e.target.closest("a[href]");
    if (!(link instanceof HTMLAnchorElement) || link.target) return;
    const url = new URL(link.href);
    if (isPage(url)) {
      if (url.hash && url.pathname === location.pathname && url.search === location.search) return;
      e.preventDefault();
      void go(url.href);
    } else if (url.origin === location.origin && token() !== null) {
      e.preventDefault();
      void download(url, link.dataset.download !== undefined);
    }
  });
  document.addEventListener("submit", (e) => {
    const form = e.target;
    if (e.defaultPrevented || !(form instanceof HTMLFormElement) || form.method === "dialog") return;
    const button = e.submitter instanceof HTMLButtonElement ? e.submitter : null;
    const method = button?.hasAttribute("formmethod") ? button.formMethod : form.method;
    const url = new URL(form.action);
    if (!isPage(url)) return;
    e.preventDefault();
    const fields = new URLSearchParams();
    for (const [name, value] of new FormData(form, e.submitter)) if (typeof value === "string") fields.append(name, value);
    if (method === "post") {
      void go(url.href, { body: fields, history: "none" });
      return;
    }
    for (const [name, value] of [...fields]) if (value === "") fields.delete(name);
    url.search = fields.toString();
    void go(url.href);
  });
}

/**
 * Fetches a file of the API with the token, because a link cannot send one.
 * @param {URL} url
 * @param {boolean} save
 */
async function download(url, save) {
  const answer = await send(url.pathname + url.search);
  if (!answer.ok) {
    fail((await answer.json().catch(() => ({}))).detail ?? "status " + answer.status);
    return;
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = save ? (url.searchParams.get("path") ?? "file").split("/").pop() ?? "file" : url.pathname.split("/").slice(-2).join("-") + ".txt";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
