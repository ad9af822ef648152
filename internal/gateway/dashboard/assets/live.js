// One connection a tab says which topics have changed. A region with such a topic is fetched again.

import { morph } from "./morph.js";
import { send } from "./session.js";

const EVERY = 1000; // a region is fetched at most once in this time, in ms
const FIRST_WAIT = 500;
const LONGEST_WAIT = 15000;
const AGAIN = 5000; // a page that the gateway cannot show yet is fetched again after this time
const NOT_YET = '.problem[data-status="503"]';
const LONGEST_SILENCE = 40000; // the gateway sends something every 15 s, so the connection is dead after this time

/** @type {AbortController | null} */
let connection = null;
/** @type {Record<string, unknown>} version of each topic */
let versions = {};
/** @type {string} id of the last message, with which a new connection goes on */
let last = "";

/** Follows the topics of the page's regions. Call it after each navigation. */
export function follow() {
  const topics = [...new Set(regions().flatMap(topicsOf))].sort();
  connection?.abort();
  connection = null;
  versions = {};
  last = "";
  if (document.querySelector("main > " + NOT_YET)) {
    show("");
    connection = new AbortController();
    void again(connection.signal);
    return;
  }
  const path = document.body.dataset.live;
  if (!path || topics.length === 0) {
    show("");
    return;
  }
  connection = new AbortController();
  void stay(path, topics, connection.signal);
}

/**
 * Fetches a page again that the gateway cannot show yet, such as while the ledger is filled.
 * @param {AbortSignal} signal
 */
async function again(signal) {
  await new Promise((done) => setTimeout(done, AGAIN));
  const main = document.getElementById("main");
  if (signal.aborted || !main) return;
  try {
    if (!document.hidden) {
      const answer = await send(location.pathname + location.search, { signal, headers: { Accept: "text/html" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("main");
      if (signal.aborted || !fresh) return;
      document.title = page.title;
      morph(main, fresh);
    }
  } catch {
    // the gateway is away: the next try may find it
  }
  if (!signal.aborted) follow();
}

/** @returns {HTMLElement[]} */
function regions() {
  return [...document.querySelectorAll("main [data-region][data-live]")].map((e) => /** @type {HTMLElement} */ (e));
}

/** @param {HTMLElement} region */
function topicsOf(region) {
  return (region.dataset.live ?? "").split(" ").filter(Boolean);
}

/** @param {string} state */
function show(state) {
  const mark = document.getElementById("live-state");
  if (!mark || mark.dataset.state === state) return;
  mark.dataset.state = state;
  mark.textContent = state;
}

/**
 * Connects again after each break, with a growing pause.
 * @param {string} path
 * @param {string[]} topics
 * @param {AbortSignal} signal
 */
async function stay(path, topics, signal) {
  let pause = FIRST_WAIT;
  while (!signal.aborted) {
    const silent = new AbortController();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), LONGEST_SILENCE);
    };
    try {
      const query = new URLSearchParams({ topics: topics.join(",") });
      if (last) query.set("since", last);
      const answer = await send(path + "?" + query, { signal: AbortSignal.any([signal, silent.signal]), headers: { Accept: "text/event-stream" } });
      if (answer.status >= 400 && answer.status < 500 && answer.status !== 429) {
        show("not live"); // the same request would be refused again
        return;
      }
      if (!answer.ok || !answer.body) throw new Error("status " + answer.status);
      show("live");
      alive();
      await read(answer.body, () => (pause = FIRST_WAIT), alive);
    } catch (e) {
      if (signal.aborted) return;
    } finally {
      clearTimeout(timer);
    }
    show("reconnecting");
    for (const region of regions()) if (region.querySelector(NOT_YET)) stale(region);
    await new Promise((done) => setTimeout(done, pause * (0.75 + Math.random() / 2)));
    pause = Math.min(pause * 2, LONGEST_WAIT);
  }
}

/**
 * Reads server-sent events until the connection ends.
 * @param {ReadableStream<Uint8Array>} body
 * @param {() => void} well is called with each message
 * @param {() => void} alive is called when anything arrives
 */
async function read(body, well, alive) {
  for await (const message of messages(body, alive)) {
    well();
    if (message.id) last = message.id;
    if (message.event === "changed") changed(JSON.parse(message.data));
  }
}

/**
 * Splits a stream into server-sent events. The live connection and tails share it. A message may have an id alone, with
 * which a new connection goes on.
 * @param {ReadableStream<Uint8Array>} body
 * @param {() => void} [alive] is called when anything arrives
 * @returns {AsyncGenerator<{event: string, id: string, data: string}>}
 */
export async function* messages(body, alive = () => {}) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      alive();
      rest += decoder.decode(value, { stream: true });
      for (;;) {
        const end = rest.indexOf("\n\n");
        if (end < 0) break;
        const message = { event: "message", id: "", data: "" };
        const data = [];
        for (const line of rest.slice(0, end).split("\n")) {
          const colon = line.indexOf(":");
          const field = colon < 0 ? line : line.slice(0, colon);
          const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
          if (field === "data") data.push(text);
          else if (field === "event") message.event = text;
          else if (field === "id") message.id = text;
        }
        rest = rest.slice(end + 2);
        if (data.length === 0 && message.id === "") continue; // a comment keeps the connection open
        message.data = data.join("\n");
        yield message;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Notes versions, and marks the regions of changed topics. After the first message all of them are, because the page may
 * show an older state.
 * @param {Record<string, unknown>} news
 */
function changed(news) {
  const topics = Object.keys(news).filter((t) => JSON.stringify(versions[t]) !== JSON.stringify(news[t]));
  versions = { ...versions, ...news };
  for (const region of regions()) if (topicsOf(region).some((t) => topics.includes(t))) stale(region);
}

/** @type {WeakMap<HTMLElement, {fetched: number, stale: boolean, running: boolean}>} */
const states = new WeakMap();

/** @param {HTMLElement} region */
function stateOf(region) {
  let s = states.get(region);
  if (!s) states.set(region, (s = { fetched: performance.now(), stale: false, running: false }));
  return s;
}

/**
 * Marks a region as outdated, and fetches it when it may be fetched.
 * @param {HTMLElement} region
 */
function stale(region) {
  const s = stateOf(region);
  s.stale = true;
  if (s.running || document.hidden) return;
  s.running = true;
  setTimeout(() => void refresh(region), Math.max(0, s.fetched + EVERY - performance.now()));
}

/** @param {HTMLElement} region */
async function refresh(region) {
  const s = stateOf(region);
  try {
    if (document.hidden || !region.isConnected) return;
    s.stale = false;
    s.fetched = performance.now();
    const at = location.href;
    const known = Object.fromEntries(topicsOf(region).map((t) => [t, versions[t]]));
    const answer = await send(location.pathname + location.search, { headers: { "Tidemill-Region": region.dataset.region ?? "", "Tidemill-Versions": JSON.stringify(known) } });
    const text = await answer.text();
    if (location.href !== at || !region.isConnected || !answer.headers.get("Content-Type")?.startsWith("text/html")) return;
    const fresh = new DOMParser().parseFromString(text, "text/html").body.firstElementChild;
    if (fresh instanceof HTMLElement && fresh.dataset.region === region.dataset.region) morph(region, fresh);
    if (answer.headers.has("Tidemill-Older")) s.stale = true; // it was rendered for another tab, just before our changes
  } catch {
    s.stale = true; // the next change, or the next connection, fetches it
  } finally {
    s.running = false;
    if (s.stale && region.isConnected && !document.hidden) stale(region);
  }
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) for (const region of regions()) if (states.get(region)?.stale) stale(region);
});
