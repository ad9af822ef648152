// Posts the events of a file in every mode, as npm's cloudevents writes them.
//
// usage: node post.cjs URL EVENTS.json; prints the status of each answer.
const fs = require("node:fs");
const { CloudEvent, HTTP } = require("cloudevents");

function event(entry, mode) {
  const data = entry.base64 ? Uint8Array.from(Buffer.from(entry.base64, "base64")) : entry.json ?? entry.text;
  return new CloudEvent({ id: `node-${mode}-${entry.name}`, ...entry.attributes, data });
}

async function post(url, { headers, body }) {
  const answer = await fetch(url, { method: "POST", headers, body });
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
  console.log(answer.status);
}

async function main(url, file) {
  const entries = JSON.parse(fs.readFileSync(file, "utf8"));
  for (const entry of entries) {
    // The library does not percent-encode, so a header cannot have other characters than ASCII.
    if (!entry.encodes) await post(url, HTTP.binary(event(entry, "binary")));
    await post(url, HTTP.structured(event(entry, "structured")));
  }
  const bodies = entries.map((entry) => HTTP.structured(event(entry, "batch")).body);
  await post(url, { headers: { "content-type": "application/cloudevents-batch+json" }, body: `[${bodies}]` });
}

main(...process.argv.slice(2)).catch((err) => { console.error(err); process.exit(1); });
