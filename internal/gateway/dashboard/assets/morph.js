// morph changes a part of the page to new HTML, and keeps what the person does with it: the focus, the
// selection, scrolling, open details and unsent input.

/**
 * @param {Element} from the element on the page
 * @param {Element} to the same element as the server renders it now
 */
export function morph(from, to) {
  if (from.isEqualNode(to)) return;
  attributes(from, to);
  if (from.tagName.includes("-") && from.hasAttribute("data-own")) return; // it manages its own children
  children(from, to);
}

/** @param {Node} n */
function keyOf(n) {
  if (!(n instanceof Element)) return null;
  return n.id || n.getAttribute("data-key");
}

/**
 * @param {Node} a
 * @param {Node} b
 */
function fits(a, b) {
  return a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);
}

/**
 * @param {Node} n
 * @returns {boolean} whether a script has added it to what the server has rendered
 */
function isOurs(n) {
  return n instanceof Element && !n.tagName.includes("-") && n.hasAttribute("data-own");
}

/**
 * @param {Element} from
 * @param {Element} to
 */
function attributes(from, to) {
  for (const { name, value } of [...to.attributes]) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    const mine = name === "data-own" || name === "data-current" || (name === "open" && from.tagName === "DETAILS");
    if (!mine && !to.hasAttribute(name)) from.removeAttribute(name);
  }
  if (from instanceof HTMLInputElement && to instanceof HTMLInputElement && from !== document.activeElement && from.value === from.defaultValue) {
    from.value = to.value;
  }
}

/**
 * @param {Element} from
 * @param {Element} to
 */
function children(from, to) {
  /** @type {Map<string, Element>} the first child with each key that is not in its place yet; several may have one */
  const keyed = new Map();
  for (const child of from.children) {
    const key = keyOf(child);
    if (key && !keyed.has(child.nodeName + key)) keyed.set(child.nodeName + key, child);
  }
  /** @type {ChildNode | null} */
  let at = from.firstChild;
  for (const want of [...to.childNodes]) {
    const key = keyOf(want);
    const old = key ? keyed.get(want.nodeName + key) : undefined;
    if (old) keyed.delete(want.nodeName + key);
    if (old && old !== at) {
      from.insertBefore(old, at);
      at = old;
    }
    if (at && fits(at, want)) {
      if (at instanceof Element && want instanceof Element) morph(at, want);
      else if (at.nodeValue !== want.nodeValue) at.nodeValue = want.nodeValue;
      at = at.nextSibling;
      continue;
    }
    from.insertBefore(want, at);
  }
  while (at) {
    const next = at.nextSibling;
    if (!isOurs(at)) at.remove();
    at = next;
  }
}
