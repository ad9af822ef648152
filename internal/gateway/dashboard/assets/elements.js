// Custom elements: a command to copy, and the log of a run that follows.

import { send } from "./session.js";
import { announce } from "./nav.js";

class Copy extends HTMLElement {
  connectedCallback() {
    if (this.dataset.own !== undefined) return;
    this.dataset.own = "";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(this.querySelector("code")?.textContent ?? "");
      button.textContent = "Copied";
      announce("Copied");
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    this.append(button);
  }
}

const LOG_KEPT = 200000; // characters of a log that the page shows

class Log extends HTMLElement {
  connectedCallback() {
    if (this.dataset.own !== undefined) return;
    this.dataset.own = "";
    this.stop = new AbortController();
    const box = document.createElement("pre");
    box.className = "log";
    box.tabIndex = 0;
    box.setAttribute("role", "log");
    box.setAttribute("aria-label", "Log");
    box.setAttribute("aria-live", "off");
    this.prepend(box);
    void this.follow(box, this.stop.signal);
  }

  disconnectedCallback() {
    this.stop?.abort();
  }

  /**
   * Reads the log to its end. After a break it goes on behind the bytes that it has.
   * @param {HTMLElement} box
   * @param {AbortSignal} signal
   */
  async follow(box, signal) {
    let bytes = 0;
    let attempt = "";
    for (let pause = 1000; !signal.aborted; pause = Math.min(pause * 2, 15000)) {
      try {
        const query = new URLSearchParams({ follow: "true" });
        if (attempt) query.set("attempt", attempt);
        if (bytes) query.set("skip", String(bytes));
        const answer = await send(this.dataset.src + "?" + query, { signal });
        if (!answer.ok || !answer.body) {
          if (answer.status < 500 && answer.status !== 429) {
            box.textContent ||= (await answer.json()).detail;
            return;
          }
          throw new Error("status " + answer.status);
        }
        attempt = answer.headers.get("Tidemill-Attempt") ?? attempt;
        const decoder = new TextDecoder();
        const reader = answer.body.getReader();
        for (;;) {
          const { done, value } = await reader.read();
          if (done) {
            if (!box.textContent) box.textContent = "The command has written nothing.";
            return;
          }
          pause = 1000;
          bytes += value.length;
          add(box, decoder.decode(value, { stream: true }));
        }
      } catch {
        if (signal.aborted) return;
      }
      await new Promise((done) => setTimeout(done, pause));
    }
  }
}

/**
 * Adds text to a log. The view follows if it was at the end.
 * @param {HTMLElement} box
 * @param {string} text
 */
export function add(box, text) {
  const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
  box.append(text);
  while ((box.textContent?.length ?? 0) > LOG_KEPT && box.childNodes.length > 1) box.firstChild?.remove();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

/** Defines the elements. */
export function define() {
  customElements.define("tm-copy", Copy);
  customElements.define("tm-log", Log);
}
