// The page works without this script. With it, links and forms do not load the whole page, regions
// stay fresh, and a gateway with an access file gets its token.

import { define } from "./elements.js";
import { listen } from "./keys.js";
import { follow } from "./live.js";
import { go, takeOver } from "./nav.js";
import { askForToken, comeBack, token } from "./session.js";

/**
 * @param {number} ms distance from now
 * @returns {string} the same words as the server's
 */
function distance(ms) {
  const s = Math.abs(ms) / 1000;
  if (s < 2) return "now";
  const words = s < 60 ? Math.floor(s) + " s" : s < 3600 ? Math.floor(s / 60) + " min" : s < 86400 ? +(s / 3600).toFixed(1) + " h" : (s < 864000 ? +(s / 86400).toFixed(1) : Math.floor(s / 86400)) + " d";
  return ms < 0 ? "in " + words : words + " ago";
}

function refreshTimes() {
  if (document.hidden) return;
  for (const t of document.querySelectorAll("time[data-ago]")) {
    const words = distance(Date.now() - Date.parse(/** @type {HTMLTimeElement} */ (t).dateTime));
    if (t.textContent !== words) t.textContent = words;
  }
}

define();
takeOver();
listen();
setInterval(refreshTimes, 1000);
if (document.body.hasAttribute("data-unknown")) {
  const back = await comeBack();
  if (token() === null) await askForToken("");
  await go(back ?? location.href, { history: "replace" });
} else follow();
