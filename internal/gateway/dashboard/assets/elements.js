// Custom elements: a command to copy, the log of a run, the tail of a stream, and an image that needs the token.

import { messages } from "./live.js";
import { announce } from "./nav.js";
import { send } from "./session.js";
import { Strip } from "./strip.js";

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
function add(box, text) {
  const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
  box.append(text);
  while ((box.textContent?.length ?? 0) > LOG_KEPT && box.childNodes.length > 1) box.firstChild?.remove();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

const TAIL_KEPT = 200; // events that a tail shows
const TAIL_EVERY = 250; // a tail is painted at most once in this time, in ms

class Tail extends HTMLElement {
  connectedCallback() {
    if (this.dataset.own !== undefined) return;
    this.dataset.own = "";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Follow new events";
    const state = document.createElement("span");
    state.className = "none";
    state.setAttribute("role", "status");
    const list = document.createElement("ol");
    list.className = "tail";
    list.reversed = true;
    this.append(button, " ", state, list);
    button.addEventListener("click", () => {
      if (this.stop) {
        this.stop.abort();
        this.stop = undefined;
        button.textContent = "Follow new events";
        state.textContent = "";
        return;
      }
      this.stop = new AbortController();
      button.textContent = "Stop";
      void this.follow(list, state, this.stop.signal);
    });
  }

  disconnectedCallback() {
    this.stop?.abort();
  }

  /**
   * Shows new events, newest first. After a break it goes on after the last event.
   * @param {HTMLElement} list
   * @param {HTMLElement} state
   * @param {AbortSignal} signal
   */
  async follow(list, state, signal) {
    let last = "";
    let seen = 0;
    /** @type {HTMLElement[]} */
    let waiting = [];
    const paint = () => {
      if (waiting.length === 0) return;
      list.prepend(...waiting.splice(0).slice(-TAIL_KEPT).reverse());
      while (list.children.length > TAIL_KEPT) list.lastElementChild?.remove();
      state.textContent = "live, " + seen + " events";
    };
    const timer = setInterval(paint, TAIL_EVERY);
    signal.addEventListener("abort", () => clearInterval(timer));
    for (let pause = 1000; !signal.aborted; pause = Math.min(pause * 2, 15000)) {
      let away = "reconnecting";
      try {
        const query = new URLSearchParams({ from: "end" });
        if (this.dataset.where) query.set("where", this.dataset.where);
        const answer = await send(this.dataset.src + "?" + query, { signal, headers: last ? { "Last-Event-ID": last } : {} });
        if (!answer.ok || !answer.body) {
          state.textContent = away = (await answer.json().catch(() => ({}))).detail ?? "status " + answer.status;
          if (answer.status < 500 && answer.status !== 429) return;
          throw new Error(away);
        }
        state.textContent = "live";
        for await (const message of messages(answer.body)) {
          pause = 1000;
          if (message.id) last = message.id;
          if (message.event === "end") return;
          if (message.data === "") continue; // the place at which the tail begins
          seen++;
          waiting.push(row(message.data));
        }
      } catch {
        if (signal.aborted) return;
      }
      paint();
      state.textContent = away;
      await new Promise((done) => setTimeout(done, pause));
    }
  }
}

/**
 * @param {string} data a record of a tail
 * @returns {HTMLElement}
 */
function row(data) {
  const item = document.createElement("li");
  const record = JSON.parse(data);
  const event = record.event ?? {};
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = plain([record.partition + "/" + record.offset, event.type ?? record.error, event.subject, event.id].filter(Boolean).join("  ")).slice(0, 200);
  const body = document.createElement("pre");
  details.addEventListener("toggle", () => (body.textContent ||= plain(JSON.stringify(event, null, 2))), { once: true });
  details.append(summary, body);
  item.append(details);
  return item;
}

/**
 * Makes characters visible that would change how a line reads, as the server does.
 * @param {string} text
 */
export function plain(text) {
  return text.replace(/[\p{C}\u2028\u2029]/gu, (c) => (c === "\n" || c === "\t" ? c : "\\u" + (c.codePointAt(0) ?? 0).toString(16).padStart(4, "0")));
}

class Picture extends HTMLElement {
  connectedCallback() {
    if (this.dataset.own !== undefined) return;
    this.dataset.own = "";
    void this.draw();
  }

  /** Draws the image on a canvas, because the policy allows no image from a blob. */
  async draw() {
    const answer = await send(this.dataset.src ?? "");
    const bits = answer.ok ? await createImageBitmap(await answer.blob()).catch(() => null) : null;
    if (!bits) return; // the link to the file stays
    const canvas = document.createElement("canvas");
    canvas.className = "shown";
    canvas.width = bits.width;
    canvas.height = bits.height;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", this.dataset.name ?? "image");
    canvas.getContext("2d")?.drawImage(bits, 0, 0);
    this.prepend(canvas);
  }
}

/** Defines the elements. */
export function define() {
  customElements.define("tm-copy", Copy);
  customElements.define("tm-log", Log);
  customElements.define("tm-tail", Tail);
  customElements.define("tm-strip", Strip);
  customElements.define("tm-image", Picture);
}
