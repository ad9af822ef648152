// Runs in each page before the page's own scripts, and notes what the tests measure.
(() => {
  const rig = { longTasks: [], paints: {}, lcp: 0, shift: 0, pressed: 0, faults: [] };
  Object.defineProperty(window, "__rig", { value: rig });
  const observe = (type, fn) => new PerformanceObserver((list) => list.getEntries().forEach(fn)).observe({ type, buffered: true });
  observe("longtask", (e) => rig.longTasks.push({ at: Math.round(e.startTime), ms: Math.round(e.duration) }));
  observe("paint", (e) => { rig.paints[e.name] = e.startTime; });
  observe("largest-contentful-paint", (e) => { rig.lcp = e.startTime; });
  observe("layout-shift", (e) => { if (!e.hadRecentInput) rig.shift += e.value; });
  document.addEventListener("securitypolicyviolation", (e) => rig.faults.push(`${e.violatedDirective} ${e.blockedURI}`));
  for (const type of ["keydown", "pointerdown", "input", "submit"]) {
    window.addEventListener(type, (e) => { rig.pressed = e.timeStamp; }, true);
  }
  // The next frame after the change, and a task after that frame, is when the change is on the screen.
  const painted = () => new Promise((done) => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => done(performance.now());
    channel.port2.postMessage(0);
  }));
  // Waits until a condition holds, and returns the milliseconds from the last key or click to the paint.
  rig.until = async (condition) => {
    const holds = () => { try { return condition(); } catch { return false; } };
    while (!holds()) {
      await new Promise((again) => {
        const seen = new MutationObserver(() => { seen.disconnect(); again(); });
        seen.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
        setTimeout(() => { seen.disconnect(); again(); }, 250);
      });
    }
    return (await painted()) - rig.pressed;
  };
  rig.nodes = () => {
    const count = (root) => {
      let n = 0;
      const walk = document.createTreeWalker(root, NodeFilter.SHOW_ALL);
      while (walk.nextNode()) {
        n++;
        if (walk.currentNode.shadowRoot) n += count(walk.currentNode.shadowRoot);
      }
      return n;
    };
    return count(document);
  };
})();
