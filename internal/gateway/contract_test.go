package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"tidemill.dev/api"
)

// contractAccess has a caller for each case of the contract.
func contractAccess() string {
	return "version: 1\ntokens:\n" +
		callerLine("all", "role: [publish, read]") +
		callerLine("reader", "role: read") +
		callerLine("prometheus", "role: metrics") +
		callerLine("shop", "role: publish, types: [message, shop.*], sources: [/shop/*], keys: [shop-*]")
}

// problemCase is a request and its expected answer.
type problemCase struct {
	name    string
	method  string // POST if empty
	path    string // /events if empty
	headers []string
	body    string

	status    int
	slug      string // slug of the problem; empty means no problem
	attribute string
	detail    string // part of the problem's detail
	header    []string
}

func plain(more ...string) []string { return eventHeaders("1", more...) }

func with(lists ...[]string) []string {
	var all []string
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

const (
	structuredType = "application/cloudevents+json"
	batchType      = "application/cloudevents-batch+json"
)

func structured(more string) string {
	return `{"specversion":"1.0","type":"test","source":"/test","id":"1"` + more + `}`
}

func contract() []problemCase {
	none := []string{}
	body := func(s string) []string { return []string{"Content-Type", s} }
	return []problemCase{
		{name: "binary", headers: plain("Content-Type", "application/json"), body: `{}`, status: 202},
		{name: "binary without data", headers: plain(), status: 202},
		{name: "structured", headers: body(structuredType), body: structured(``), status: 202},
		{name: "structured with a charset", headers: body(structuredType + "; charset=UTF-8"), body: structured(``), status: 202},
		{name: "batch", headers: body(batchType), body: `[` + structured(``) + `]`, status: 202},
		{name: "empty batch", headers: body(batchType), body: `[]`, status: 202},
		{name: "to a stream", path: "/streams/messages", headers: plain(), status: 202},

		{name: "no event", headers: none, body: "hello", status: 400, slug: api.InvalidEvent, attribute: "specversion"},
		{name: "json, but no event", headers: body("application/json"), body: structured(``), status: 400, slug: api.InvalidEvent, attribute: "specversion"},
		{name: "another version", headers: []string{"ce-specversion", "0.3", "ce-type", "t", "ce-source", "/s", "ce-id", "1"}, status: 400, slug: api.InvalidEvent, attribute: "specversion"},
		{name: "no id", headers: []string{"ce-specversion", "1.0", "ce-type", "t", "ce-source", "/s"}, status: 400, slug: api.InvalidEvent, attribute: "id"},
		{name: "bad time", headers: plain("ce-time", "yesterday"), status: 400, slug: api.InvalidEvent, attribute: "time"},
		{name: "bad extension", headers: plain("ce-my-name", "x"), status: 400, slug: api.InvalidEvent, attribute: "my-name"},
		{name: "twice", headers: plain("ce-id", "2"), status: 400, slug: api.InvalidEvent, attribute: "id"},
		{name: "no json", headers: body(structuredType), body: `{`, status: 400, slug: api.InvalidEvent},
		{name: "structured without source", headers: body(structuredType), body: `{"specversion":"1.0","type":"t","id":"1"}`, status: 400, slug: api.InvalidEvent, attribute: "source"},
		{name: "no array", headers: body(batchType), body: structured(``), status: 400, slug: api.InvalidEvent},

		{name: "our type", headers: []string{"ce-specversion", "1.0", "ce-type", "tidemill.scored", "ce-source", "/s", "ce-id", "1"}, status: 403, slug: api.Reserved, attribute: "type"},
		{name: "our type structured", headers: body(structuredType), body: `{"specversion":"1.0","type":"tidemill.scored","source":"/s","id":"1"}`, status: 403, slug: api.Reserved, attribute: "type"},
		{name: "our source", headers: body(structuredType), body: `{"specversion":"1.0","type":"t","source":"/tidemill/x/controller","id":"1"}`, status: 403, slug: api.Reserved, attribute: "source"},
		{name: "facts", path: "/streams/facts", headers: plain(), status: 403, slug: api.Reserved},
		{name: "progress", path: "/streams/progress", headers: plain(), status: 403, slug: api.Reserved},
		{name: "dead letters", path: "/streams/dead-letters", headers: plain(), status: 403, slug: api.Reserved},
		{name: "parked", path: "/streams/messages.parked", headers: plain(), status: 403, slug: api.Reserved},
		{name: "unknown stream", path: "/streams/nowhere", headers: plain(), status: 404, slug: api.UnknownStream},

		{name: "unknown path", path: "/event", headers: plain(), status: 404, slug: api.NotFound},
		{name: "unknown path below", path: "/streams/a/b", headers: plain(), status: 404, slug: api.NotFound},
		{name: "no stream", path: "/streams/", headers: plain(), status: 404, slug: api.NotFound},
		{name: "wrong method", method: "GET", status: 405, slug: api.MethodNotAllowed, header: []string{"Allow", "OPTIONS, POST"}},
		{name: "wrong method on a stream", method: "DELETE", path: "/streams/messages", status: 405, slug: api.MethodNotAllowed, header: []string{"Allow", "OPTIONS, POST"}},
		{name: "strange method", method: "PROPFIND", path: "/healthz", status: 405, slug: api.MethodNotAllowed, header: []string{"Allow", "OPTIONS, GET, HEAD"}},

		{name: "event too large", headers: plain(), body: strings.Repeat("x", 1<<20+1), status: 413, slug: api.TooLarge, detail: "1048576"},
		{name: "event too large with its attributes", headers: plain(), body: strings.Repeat("x", 1<<20-10), status: 413, slug: api.TooLarge, detail: "1048576"},
		{name: "structured event too large", headers: body(structuredType), body: structured(`,"data":"` + strings.Repeat("x", 1<<20) + `"`), status: 413, slug: api.TooLarge},
		{name: "batch too large", headers: body(batchType), body: "[" + strings.Repeat(" ", 16<<20) + "]", status: 413, slug: api.TooLarge, detail: "16777216"},
		{name: "too many events", headers: body(batchType), body: "[" + strings.Repeat("{},", 10_000) + "{}]", status: 413, slug: api.TooLarge, detail: "10000"},

		{name: "another format", headers: body("application/cloudevents+avro"), body: "x", status: 415, slug: api.UnsupportedType},
		{name: "another batch format", headers: body("application/cloudevents-batch+xml"), body: "x", status: 415, slug: api.UnsupportedType},
		{name: "another charset", headers: body(structuredType + "; charset=utf-16"), body: "x", status: 415, slug: api.UnsupportedType},
		{name: "compressed", headers: plain("Content-Encoding", "gzip"), body: "x", status: 415, slug: api.UnsupportedType},
		{name: "headers too large", headers: plain("ce-subject", strings.Repeat("x", 16<<10)), status: 431, slug: api.HeadersTooLarge},

		{name: "options", method: "OPTIONS", status: 204, header: []string{"Allow", "OPTIONS, POST"}},
		{name: "handshake", method: "OPTIONS", path: "/streams/messages", headers: []string{"WebHook-Request-Origin", "eventemitter.example.com", "WebHook-Request-Rate", "120"},
			status: 204, header: []string{"WebHook-Allowed-Origin", "eventemitter.example.com", "WebHook-Allowed-Rate", "*", "Allow", "OPTIONS, POST"}},
		{name: "options without an origin", method: "OPTIONS", status: 204, header: []string{"WebHook-Allowed-Origin", ""}},
		{name: "options elsewhere", method: "OPTIONS", path: "/healthz", headers: []string{"WebHook-Request-Origin", "x"}, status: 204, header: []string{"WebHook-Allowed-Origin", ""}},
		{name: "health", method: "GET", path: "/healthz", status: 200},
		{name: "ready", method: "GET", path: "/readyz", status: 200},
		{name: "metrics", method: "GET", path: "/metrics", status: 200},
		{name: "another host", headers: plain("Host", "rebound.example"), status: 403, slug: api.Forbidden},
		{name: "another host, with a port", headers: plain("Host", "rebound.example:8080"), status: 403, slug: api.Forbidden},
		{name: "localhost", headers: plain("Host", "localhost:8080"), status: 202},
		{name: "IPv6 loopback", headers: plain("Host", "[::1]:8080"), status: 202},
	}
}

func guardedContract() []problemCase {
	shop := func(more ...string) []string {
		return with(tokenHeader("shop"), []string{"ce-specversion", "1.0", "ce-id", "1"}, more)
	}
	return []problemCase{
		{name: "no token", headers: plain(), status: 401, slug: api.Unauthenticated, header: []string{"WWW-Authenticate", `Bearer realm="tidemill"`}},
		{name: "bad token", headers: plain("Authorization", "Bearer nonsense"), status: 401, slug: api.Unauthenticated, header: []string{"WWW-Authenticate", `Bearer realm="tidemill", error="invalid_token"`}},
		{name: "no token for an unknown path", path: "/nowhere", status: 401, slug: api.Unauthenticated},
		{name: "no token for metrics", method: "GET", path: "/metrics", status: 401, slug: api.Unauthenticated},
		{name: "health", method: "GET", path: "/healthz", status: 200},
		{name: "options", method: "OPTIONS", status: 204},
		{name: "any host", headers: with(tokenHeader("all"), plain("Host", "events.example")), status: 202},
		{name: "role", headers: with(tokenHeader("reader"), plain()), status: 403, slug: api.Forbidden, detail: "publish"},
		{name: "role for metrics", method: "GET", path: "/metrics", headers: tokenHeader("shop"), status: 403, slug: api.Forbidden, detail: "metrics"},
		{name: "metrics for Prometheus", method: "GET", path: "/metrics", headers: tokenHeader("prometheus"), status: 200},
		{name: "nothing else for Prometheus", method: "GET", path: "/api/v1/streams", headers: tokenHeader("prometheus"), status: 403, slug: api.Forbidden, detail: "read"},
		{name: "no events for Prometheus", method: "GET", path: "/api/v1/streams/events/events", headers: tokenHeader("prometheus"), status: 403, slug: api.Forbidden, detail: "read"},
		{name: "unknown path", path: "/nowhere", headers: tokenHeader("shop"), status: 404, slug: api.NotFound},
		{name: "allowed", headers: shop("ce-type", "message", "ce-source", "/shop/1", "ce-subject", "shop-1"), status: 202},
		{name: "type", headers: shop("ce-type", "other", "ce-source", "/shop/1", "ce-subject", "shop-1"), status: 403, slug: api.Forbidden, attribute: "type"},
		{name: "source", headers: shop("ce-type", "message", "ce-source", "/bank", "ce-subject", "shop-1"), status: 403, slug: api.Forbidden, attribute: "source"},
		{name: "subject", headers: shop("ce-type", "message", "ce-source", "/shop/1", "ce-subject", "bank-1"), status: 403, slug: api.Forbidden, attribute: "subject"},
		{name: "partition key", headers: shop("ce-type", "message", "ce-source", "/shop/1", "ce-subject", "shop-1", "ce-partitionkey", "bank"), status: 403, slug: api.Forbidden, attribute: "partitionkey"},
		{name: "another's name", headers: with(tokenHeader("all"), plain("ce-authid", "root")), status: 403, slug: api.Forbidden, attribute: "authid"},
		{name: "own name", headers: with(tokenHeader("all"), eventHeaders("2", "ce-authid", "all")), status: 202},
	}
}

func TestContract(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Repeats = nil })
	for _, a := range contract() {
		t.Run(a.name, func(t *testing.T) { a.ask(t, w) })
	}
}

func TestGuardedContract(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, contractAccess())
	w := newWorld(t, func(o *Options) { o.Access, o.Repeats = guard, nil })
	for _, a := range guardedContract() {
		t.Run(a.name, func(t *testing.T) { a.ask(t, w) })
	}
}

func (a problemCase) ask(t *testing.T, w *world) {
	t.Helper()
	method, path := a.method, a.path
	if method == "" {
		method = http.MethodPost
	}
	if path == "" {
		path = "/events"
	}
	r := w.do(method, path, a.body, a.headers...)
	if r.StatusCode != a.status {
		t.Errorf("status %d, want %d: %.300s", r.StatusCode, a.status, r.body)
	}
	for i := 0; i+1 < len(a.header); i += 2 {
		if got := r.Header.Get(a.header[i]); got != a.header[i+1] {
			t.Errorf("header %s is %q, want %q", a.header[i], got, a.header[i+1])
		}
	}
	if a.slug != "" {
		a.checkProblem(t, r)
	} else if r.StatusCode == http.StatusAccepted && a.headers[0] != "Content-Type" && (r.body != "" || r.Header.Get(api.HeaderPosition) == "") {
		t.Errorf("a 202 with position %q and body %q", r.Header.Get(api.HeaderPosition), r.body)
	}
}

// checkProblem compares a problem with the expected one.
func (a problemCase) checkProblem(t *testing.T, r reply) {
	t.Helper()
	p := problemOf(t, r)
	if p.Type != api.ProblemBase+a.slug {
		t.Errorf("type %s, want %s: %s", p.Type, a.slug, p.Detail)
	}
	if a.attribute != p.Attribute || !strings.Contains(p.Detail, a.detail) {
		t.Errorf("attribute %q, want %q; detail %q", p.Attribute, a.attribute, p.Detail)
	}
	if a.slug == api.UnknownStream && fmt.Sprint(p.Streams) != "[events messages scored]" {
		t.Errorf("streams %v", p.Streams)
	}
}

// problemOf reads a problem, and checks the parts that all problems share.
func problemOf(t testing.TB, r reply) api.Problem {
	t.Helper()
	var p api.Problem
	if err := json.Unmarshal([]byte(r.body), &p); err != nil {
		t.Fatalf("%v: %.300s", err, r.body)
	}
	passes := r.StatusCode == http.StatusServiceUnavailable || r.StatusCode == http.StatusTooManyRequests
	if r.Header.Get("Content-Type") != api.ProblemType || p.Status != r.StatusCode || p.Title == "" || p.Detail == "" ||
		(r.Header.Get("Retry-After") != "") != passes {
		t.Errorf("%d with %v and %+v", r.StatusCode, r.Header, p)
	}
	return p
}
