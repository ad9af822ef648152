// The keyboard: / finds, g and a letter opens a page, j and k go through rows, Enter opens one, x selects it, b goes to the
// buttons for the selected rows, ? helps.

import { go } from "./nav.js";

let waiting = false; // whether g was pressed just now

/** @param {EventTarget | null} at */
function isTyping(at) {
  return at instanceof HTMLElement && (at.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(at.tagName));
}

/** @returns {HTMLElement[]} */
function rows() {
  return [...document.querySelectorAll("main table.rows > tbody > tr")].map((e) => /** @type {HTMLElement} */ (e));
}

/** @param {number} by */
function step(by) {
  const all = rows();
  if (all.length === 0) return;
  const now = all.findIndex((r) => r.hasAttribute("data-current"));
  const next = all[Math.min(all.length - 1, Math.max(0, now < 0 ? 0 : now + by))];
  for (const r of all) r.toggleAttribute("data-current", r === next);
  const link = next.querySelector("a, button");
  if (link instanceof HTMLElement) link.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

/** Selects the current row, or no longer. */
function select() {
  const box = document.querySelector("main tr[data-current] input[type=checkbox]");
  if (box instanceof HTMLInputElement) box.click();
}

/** Moves the focus to the buttons for the selected rows; on other pages, to the first buttons. */
function buttons() {
  const first = document.querySelector("main .selected button") ?? document.querySelector("main .actions :is(a, button:enabled)");
  if (first instanceof HTMLElement) first.focus();
}

function help() {
  const dialog = document.createElement("dialog");
  dialog.className = "help";
  dialog.setAttribute("aria-labelledby", "help-title");
  const title = document.createElement("h2");
  title.id = "help-title";
  title.textContent = "Keyboard";
  const list = document.createElement("dl");
  const pages = [...document.querySelectorAll("#nav a[data-keys]")].map((a) => [a.getAttribute("data-keys"), a.textContent]);
  for (const [keys, does] of [["/", "find"], ["j, k", "next and previous row"], ["Enter", "open the row"], ["x", "select the row"], ["b", "to the buttons"], ["Escape", "leave a field, close a dialog"], ["?", "this help"], ...pages]) {
    const row = document.createElement("div");
    const [dt, dd, kbd] = [document.createElement("dt"), document.createElement("dd"), document.createElement("kbd")];
    kbd.textContent = keys ?? "";
    dt.append(kbd);
    dd.textContent = does ?? "";
    row.append(dt, dd);
    list.append(row);
  }
  const close = document.createElement("button");
  close.textContent = "Close";
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  dialog.append(title, list, close);
  document.body.append(dialog);
  dialog.showModal();
}

/** Listens to the keyboard. */
export function listen() {
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented || document.querySelector("dialog[open]")) return;
    if (isTyping(e.target)) {
      if (e.key === "Escape" && e.target instanceof HTMLElement) e.target.blur();
      return;
    }
    if (waiting) {
      waiting = false;
      const link = document.querySelector('#nav a[data-keys="g ' + CSS.escape(e.key) + '"]');
      if (link instanceof HTMLAnchorElement) {
        e.preventDefault();
        void go(link.href);
      }
      return;
    }
    switch (e.key) {
      case "g":
        waiting = true;
        setTimeout(() => (waiting = false), 1500);
        return;
      case "/": {
        const search = document.querySelector("input[type=search]");
        if (search instanceof HTMLInputElement) {
          search.focus();
          search.select();
        }
        break;
      }
      case "j":
        step(1);
        break;
      case "k":
        step(-1);
        break;
      case "x":
        select();
        break;
      case "b":
        buttons();
        break;
      case "?":
        help();
        break;
      default:
        return;
    }
    e.preventDefault();
  });
}
