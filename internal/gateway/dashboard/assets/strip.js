// The strip of the fleet: one cell for each key. The server draws it; this finds the key of a cell.

import { plain } from "./elements.js";
import { go } from "./nav.js";
import { send } from "./session.js";

/** The key of the cell of the strip that is pointed at, or that the arrows have reached. */
export class Strip extends HTMLElement {
  at = -1;
  wanted = 0;

  connectedCallback() {
    if (this.dataset.own !== undefined) return;
    this.dataset.own = "";
    this.setAttribute("role", "status");
    const strip = this.previousElementSibling;
    if (!(strip instanceof SVGSVGElement)) return;
    strip.addEventListener("pointermove", (e) => this.show(strip, this.cellOf(strip, e)));
    strip.addEventListener("click", (e) => this.open(strip, this.cellOf(strip, e)));
    strip.addEventListener("keydown", (e) => {
      const columns = Number(strip.dataset.columns);
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[e.key];
      if (step !== undefined) {
        e.preventDefault();
        this.show(strip, this.at < 0 ? 0 : this.at + step);
      } else if (e.key === "Enter") this.open(strip, this.at);
    });
  }

  /**
   * @param {SVGSVGElement} strip
   * @param {MouseEvent} e
   */
  cellOf(strip, e) {
    const columns = Number(strip.dataset.columns);
    const box = strip.getBoundingClientRect();
    const size = Math.min(box.width / columns, box.height / strip.viewBox.baseVal.height);
    const [x, y] = [e.clientX - box.left - (box.width - size * columns) / 2, e.clientY - box.top - (box.height - size * strip.viewBox.baseVal.height) / 2];
    const column = Math.floor(x / size);
    return column < 0 || column >= columns ? -1 : Math.floor(y / size) * columns + column;
  }

  /**
   * @param {SVGSVGElement} strip
   * @param {number} cell
   */
  show(strip, cell) {
    if (cell === this.at || cell < 0 || cell >= Number(strip.dataset.total)) return;
    this.at = cell;
    const columns = Number(strip.dataset.columns);
    let mark = strip.querySelector(".at");
    if (!mark) {
      mark = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      mark.setAttribute("class", "at");
      mark.setAttribute("data-own", "");
      mark.setAttribute("width", "1");
      mark.setAttribute("height", "1");
      strip.append(mark);
    }
    mark.setAttribute("x", String(cell % columns));
    mark.setAttribute("y", String(Math.floor(cell / columns)));
    clearTimeout(this.wanted);
    this.wanted = setTimeout(() => void this.name(strip, cell), 60);
  }

  /**
   * Asks for the key of a cell, and says what it is.
   * @param {SVGSVGElement} strip
   * @param {number} cell
   */
  async name(strip, cell) {
    const answer = await send("/api/v1/fleet/keys?" + strip.dataset.query + "&limit=1&at=" + cell).catch(() => null);
    const key = answer?.ok ? (await answer.json()).keys[0] : null;
    if (cell !== this.at || !key) return;
    const link = document.createElement("a");
    link.href = "/ui/key?" + new URLSearchParams({ key: key.key });
    link.textContent = plain(key.key.length > 64 ? key.key.slice(0, 64) + "…" : key.key);
    const name = document.createElement("bdi");
    name.append(link);
    this.replaceChildren(name, " " + [key.state === "none" ? "no model" : key.state, key.why, key.champion ? "champion " + key.champion : ""].filter(Boolean).join(", "));
  }

  /**
   * @param {SVGSVGElement} strip
   * @param {number} cell
   */
  async open(strip, cell) {
    this.show(strip, cell);
    await this.name(strip, cell);
    const link = this.querySelector("a");
    if (link) void go(link.href);
  }
}
