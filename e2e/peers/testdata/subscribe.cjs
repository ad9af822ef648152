// A subscriber that answers each event with the event that it read, in the encoding of npm's
// cloudevents.
//
// usage: node subscribe.cjs; prints its address. The path chooses the mode of its answers: /binary,
// /structured or /batch, with two events.
const http = require("node:http");
const { CloudEvent, HTTP } = require("cloudevents");

function seen(event) {
  const { data, data_base64, ...attributes } = event.toJSON();
  for (const name in attributes) {
    if (attributes[name] === undefined) delete attributes[name];
    else attributes[name] = String(attributes[name]);
  }
  if (Buffer.isBuffer(event.data)) return { attributes, base64: event.data.toString("base64") };
  if (typeof data === "string") return { attributes, text: data };
  return data === undefined ? { attributes } : { attributes, json: data };
}

function echo(event) {
  return new CloudEvent({ source: "/peers/node", type: "echo", subject: event.subject, datacontenttype: "application/json", data: seen(event) });
}

function answer(mode, event) {
  if (mode === "binary") return HTTP.binary(echo(event));
  if (mode === "structured") return HTTP.structured(echo(event));
  const bodies = [echo(event), echo(event)].map((one) => HTTP.structured(one).body);
  return { headers: { "content-type": "application/cloudevents-batch+json" }, body: `[${bodies}]` };
}

// An empty body means no data; the library needs text as a string.
function bodyOf(raw, headers) {
  if (raw.length === 0) return undefined;
  return /json|^text\//.test(headers["content-type"] ?? "") ? raw.toString() : raw;
}

const server = http.createServer((request, response) => {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    try {
      const event = HTTP.toEvent({ headers: request.headers, body: bodyOf(Buffer.concat(chunks), request.headers) });
      const { headers, body } = answer(request.url.slice(1), event);
      response.writeHead(200, headers).end(body);
    } catch (err) {
      response.writeHead(400, { "content-type": "text/plain" }).end(String(err.stack ?? err));
    }
  });
});
server.listen(0, "127.0.0.1", () => console.log(`127.0.0.1:${server.address().port}`));
