package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/models/trials"
	"tidemill.dev/internal/ops/status"
)

// answerChecker compares real answers with the document, and remembers which statuses of which
// operations it has seen.
type answerChecker struct {
	testing.TB
	doc  *openapi3.T
	seen map[string]bool // operation and status
}

// testGateways are gateways of each kind, on one Kafka, and one gateway whose Kafka is away.
type testGateways struct {
	*world
	runs                              *runWorld
	open, guarded, narrow, busy, down string   // addresses
	reader, publisher                 []string // headers
	operator, approver                []string
}

func openDoors(t testing.TB) *testGateways {
	t.Helper()
	r, reader := tokenLine("reader", "r", "role: read")
	p, publisher := tokenLine("publisher", "p", "role: publish")
	op, operator := tokenLine("operator", "o", "role: operate")
	ap, approver := tokenLine("approver", "a", "role: approve")
	d := &testGateways{reader: reader, publisher: publisher, operator: operator, approver: approver}
	d.world = newWorldOf(t, testTriggers+recipesOfTests+rolledOfTests+scorersOfTests, embedded.Options{}, nil)
	d.runs = &runWorld{world: d.world}
	d.runs.startForeman()
	also := func(change func(*Options)) string { return "http://" + d.world.openGateway(change).Addr() }
	d.open = also(d.runs.with(func(o *Options) {
		o.Standing, o.Score, o.Rescore, o.Inference = boardOf(t, "kafka-1"), echoScore, echoRescore, modelsOfTests
		d.world.standings(o)
		o.Rejudge = func(context.Context, *ledger.VersionRecord) (trials.Recomputed, error) {
			v := tidemill.TrialVerdict{Outcome: tidemill.TrialPassed, Read: []tidemill.TrialRange{}, Terms: tidemill.TrialTerms{Pass: []string{}, AtLeast: 1}}
			return trials.Recomputed{Recorded: v, Verdict: v}, nil
		}
	}))
	d.url = d.open
	access := d.runs.with(func(o *Options) {
		d.world.standings(o)
		o.Access = openGuard(t, "version: 1\ntokens:\n"+r+p+op+ap)
	})
	d.guarded = also(access)
	d.narrow = also(func(o *Options) {
		access(o)
		o.Limits.Event, o.Limits.Headers, o.Limits.Caller, o.Limits.OwnTails, o.Limits.OwnLive = 32<<10, 8<<10, 16<<10, -1, -1
		o.Limits.ReadHeader, o.Limits.BodyGrace, o.Limits.Batch = 2*time.Second, 200*time.Millisecond, 32<<10
		o.Inference = modelsOfTests
	})
	d.busy = also(func(o *Options) { o.Limits.Tails, o.Inference = -1, modelsAway })
	away := newWorldOf(t, testTriggers+recipesOfTests+rolledOfTests+scorersOfTests, embedded.Options{}, nil)
	lost := &runWorld{world: away}
	lost.startForeman()
	d.must(lost.store.PutNote(t.Context(), "forgetting-lost", []byte(`{"forgetting":"lost","receipt":{"partition":0,"offset":0}}`)))
	d.down = "http://" + away.openGateway(lost.with(func(o *Options) {
		o.Producer = must1(o.Broker.Producer(broker.ProducerOptions{Timeout: time.Second}))(t) // a producer without Kafka gives up soon and holds up no test
		t.Cleanup(func() { _ = o.Producer.Close(context.Background()) })
		o.History = status.NewHistory(away.redis, must1(tidemill.NewNames(""))(t), "kafka-1", slog.New(slog.DiscardHandler))
		o.Fresh = status.NewFreshness(away.redis, must1(tidemill.NewNames(""))(t), "kafka-1")
		away.standings(o)
		o.Limits.Ack, o.Limits.Room, o.Limits.Look = 200*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond
		o.Ready = func(context.Context) api.Readiness {
			return api.Readiness{Status: api.Failed, Checks: []api.Check{{Name: "kafka", Status: api.Failed, Detail: "away"}}}
		}
	})).Addr()
	d.must(away.servers.Close())
	return d
}

// rolledOfTests is a recipe with rollouts.
const rolledOfTests = `  rolled: {when: [{type: retrain}], run: {dir: ., command: [train], pool: large}, makes: {model: "rolled/{key}"}, rollout: {}}
`

// standings sets the boards on which the controller and the observer say how rollouts and trials are.
func (w *world) standings(o *Options) {
	names := must1(tidemill.NewNames(""))(w)
	o.Rollouts, o.Trials = status.NewRollouts(w.redis, names, "kafka-1"), status.NewTrials(w.redis, names, "kafka-1")
}

// rolloutAsks returns requests for rollouts and trials.
func (d *testGateways) rolloutAsks(long, stranger []string) (all []gatewayRequest) {
	const base = "/api/v1/"
	for _, path := range []string{"rollouts", "rollouts/rolled", "trials", "trials/ended", "model/rejudge?model=intent/bot-2&version=1"} {
		path = base + path
		all = append(all, gatewayRequest{d.open, "GET", path, "", nil, 200}, gatewayRequest{d.open, "GET", path, "", stranger, 403},
			gatewayRequest{d.guarded, "GET", path, "", d.publisher, 403}, gatewayRequest{d.guarded, "GET", path, "", nil, 401},
			gatewayRequest{d.narrow, "GET", path, "", append(long, d.reader...), 431}, gatewayRequest{d.down, "GET", path, "", nil, 503})
	}
	for _, action := range []string{"pause", "resume", "abort"} {
		path := base + "rollouts/rolled/" + action
		all = append(all, gatewayRequest{d.open, "POST", path, "{}", nil, 200}, gatewayRequest{d.guarded, "POST", path, "{}", d.approver, 200}, gatewayRequest{d.open, "POST", path, "{}", stranger, 403},
			gatewayRequest{d.guarded, "POST", path, "{}", d.operator, 403}, gatewayRequest{d.guarded, "POST", path, "{}", nil, 401},
			gatewayRequest{d.narrow, "POST", path, "{}", append(long, d.approver...), 431}, gatewayRequest{d.down, "POST", path, "{}", nil, 503},
			gatewayRequest{d.open, "POST", path, "{", nil, 400}, gatewayRequest{d.narrow, "POST", path, strings.Repeat(" ", 120<<10), d.approver, 413},
			gatewayRequest{d.narrow, "POST", path, strings.Repeat(" ", 30<<10), d.approver, 429}, gatewayRequest{d.narrow, "POST", path, "late", d.approver, 408},
			gatewayRequest{d.open, "POST", base + "rollouts/fraud/" + action, "{}", nil, 404})
	}
	return append(all, gatewayRequest{d.open, "GET", base + "rollouts/no", "", nil, 404}, gatewayRequest{d.open, "GET", base + "trials?x=y", "", nil, 400}, gatewayRequest{d.open, "GET", base + "trials?limit=0", "", nil, 400},
		gatewayRequest{d.open, "GET", base + "trials/ended?limit=x", "", nil, 400}, gatewayRequest{d.busy, "GET", base + "trials/ended", "", nil, 501}, gatewayRequest{d.open, "GET", base + "trials/ended?after=x", "", nil, 400},
		gatewayRequest{d.open, "GET", base + "model/rejudge?model=no", "", nil, 404}, gatewayRequest{d.open, "GET", base + "model/rejudge", "", nil, 400},
		gatewayRequest{d.guarded, "GET", base + "model/rejudge?model=intent/bot-2&version=1", "", d.reader, 501})
}

// gatewayRequest is one request to one gateway.
type gatewayRequest struct {
	door, method, path string // path in the request
	body               string
	headers            []string
	status             int
}

// redirectStatus is the status of a redirect to the store. A store in a folder cannot sign URLs;
// the suite with real servers has a bucket that can.
const redirectStatus = "307"

// allRequests returns requests that together get every documented answer.
func (d *testGateways) allRequests() []gatewayRequest {
	long := []string{"X-Long", strings.Repeat("x", 9<<10)}
	stranger := []string{"Host", "evil.example"}
	structured := []string{"Content-Type", "application/cloudevents+json"}
	batch := []string{"Content-Type", "application/cloudevents-batch+json"}
	one := func(id string) string {
		return fmt.Sprintf(`{"specversion":"1.0","id":"%s","source":"/x","type":"t"}`, id)
	}
	var all []gatewayRequest
	for operation, role := range map[string][]string{
		"GET /api/v1/streams": d.reader, "GET /api/v1/streams/events": d.reader, "GET /api/v1/streams/events/events?follow=false": d.reader,
		"GET /api/v1/history?of=stream:messages":           d.reader,
		"GET /api/v1/freshness":                            d.reader,
		"GET /api/v1/commands":                             d.reader,
		"GET /api/v1/caller":                               d.publisher,
		"GET /api/v1/live?topics=health,runs&follow=false": d.reader,
		"GET /api/v1/openapi.json":                         d.publisher, "GET /metrics": d.reader, "GET /healthz": nil, "HEAD /healthz": nil, "GET /readyz": nil, "HEAD /readyz": nil,
	} {
		method, path, _ := strings.Cut(operation, " ")
		all = append(all,
			gatewayRequest{d.open, method, path, "", nil, 200},
			gatewayRequest{d.guarded, method, path, "", role, 200},
			gatewayRequest{d.open, method, path, "", stranger, 403},
			gatewayRequest{d.narrow, method, path, "", append(long, role...), 431})
		if role != nil {
			all = append(all, gatewayRequest{d.guarded, method, path, "", nil, 401}, gatewayRequest{d.guarded, method, path, "", []string{"Authorization", "Bearer tm_no"}, 401})
		}
		if path != "/healthz" && path != "/metrics" && path != "/api/v1/openapi.json" && path != "/api/v1/caller" {
			all = append(all, gatewayRequest{d.down, method, path, "", nil, 503})
		}
	}
	all = append(all,
		gatewayRequest{d.guarded, "GET", "/api/v1/streams", "", d.publisher, 403},
		gatewayRequest{d.guarded, "GET", "/metrics", "", d.publisher, 403},
		gatewayRequest{d.open, "GET", "/api/v1/streams/no", "", nil, 404},
		gatewayRequest{d.open, "GET", "/api/v1/streams/no/events", "", nil, 404},
		gatewayRequest{d.open, "GET", "/api/v1/streams/events/events?from=x", "", nil, 400},
		gatewayRequest{d.busy, "GET", "/api/v1/streams/events/events", "", nil, 503},
		gatewayRequest{d.narrow, "GET", "/api/v1/streams/events/events", "", d.reader, 429},
		gatewayRequest{d.open, "GET", "/api/v1/live?topics=no", "", nil, 400},
		gatewayRequest{d.open, "GET", "/api/v1/history", "", nil, 400},
		gatewayRequest{d.open, "GET", "/api/v1/commands?limit=x", "", nil, 400},
		gatewayRequest{d.open, "GET", "/api/v1/freshness?of=x", "", nil, 400},
		gatewayRequest{d.open, "GET", "/api/v1/freshness?recipe=no", "", nil, 404},
		gatewayRequest{d.open, "GET", "/api/v1/history?of=pool:no", "", nil, 404},
		gatewayRequest{d.narrow, "GET", "/api/v1/live?topics=runs", "", d.reader, 429},
		gatewayRequest{d.open, "POST", "/streams/no", one("1"), structured, 404})
	all = append(all, d.deskAsks(long, stranger)...)
	all = append(all, d.scheduleAsks(long, stranger)...)
	all = append(all, d.dataAsks(long, stranger)...)
	all = append(all, d.runAsks(long, stranger)...)
	all = append(all, d.modelAsks(long, stranger)...)
	all = append(all, d.rolloutAsks(long, stranger)...)
	all = append(all, d.scorerAsks(long, stranger)...)
	all = append(all, d.inferenceAsks(long, stranger)...)
	all = append(all, d.keyAsks(long, stranger)...)
	all = append(all, d.attemptAsks(long, stranger)...)
	for _, path := range []string{"/events", "/streams/messages"} {
		all = append(all,
			gatewayRequest{d.open, "OPTIONS", path, "", nil, 204},
			gatewayRequest{d.guarded, "OPTIONS", path, "", []string{"WebHook-Request-Origin", "shop.example"}, 204},
			gatewayRequest{d.open, "OPTIONS", path, "", stranger, 403},
			gatewayRequest{d.narrow, "OPTIONS", path, "", long, 431},
			gatewayRequest{d.open, "POST", path, one("1"), structured, 202},
			gatewayRequest{d.open, "POST", path, one("1"), structured, 202}, // a repeat
			gatewayRequest{d.guarded, "POST", path, "{}", append(eventHeaders("2"), d.publisher...), 202},
			gatewayRequest{d.open, "POST", path, "[" + one("1") + "," + one("3") + "]", batch, 202},
			gatewayRequest{d.open, "POST", path, "[]", batch, 202},
			gatewayRequest{d.open, "POST", path, "[" + one("4") + ",{}]", batch, 400},
			gatewayRequest{d.open, "POST", path, "{}", batch, 400},
			gatewayRequest{d.open, "POST", path, "{}", nil, 400},
			gatewayRequest{d.open, "POST", path, `{"specversion":"1.0","id":"5","source":"x y","type":"t"}`, structured, 400},
			gatewayRequest{d.open, "POST", path, one("6"), []string{"Content-Type", "application/cloudevents+avro"}, 415},
			gatewayRequest{d.guarded, "POST", path, one("7"), structured, 401},
			gatewayRequest{d.guarded, "POST", path, one("7"), append(structured, d.reader...), 403},
			gatewayRequest{d.open, "POST", path, "", append(eventHeaders("8"), "ce-type", "tidemill.x"), 403},
			gatewayRequest{d.guarded, "POST", path, "", append(eventHeaders("8", "ce-authid", "another"), d.publisher...), 403},
			gatewayRequest{d.narrow, "POST", path, strings.Repeat("x", 33<<10), append(eventHeaders("9"), d.publisher...), 413},
			gatewayRequest{d.narrow, "POST", path, strings.Repeat("x", 30<<10), append(eventHeaders("9"), d.publisher...), 429},
			gatewayRequest{d.narrow, "POST", path, "late", append(eventHeaders("9"), d.publisher...), 408},
			gatewayRequest{d.narrow, "POST", path, "", append(append(eventHeaders("9"), d.publisher...), long...), 431},
			gatewayRequest{d.down, "POST", path, one("10"), structured, 503},
			gatewayRequest{d.down, "POST", path, "[" + one("10") + "]", batch, 503})
	}
	return append(all, gatewayRequest{d.open, "GET", "/api/v1/streams/messages/events?from=beginning&follow=false", "", nil, 200})
}

// announcedLength is the length of a body that is announced but never sent.
const announcedLength = 256 << 10

// send sends a request. A body that must be late, or is refused for its length, is not sent.
func (a *answerChecker) send(q gatewayRequest) reply {
	a.Helper()
	if q.status == http.StatusRequestTimeout || len(q.body) > announcedLength {
		return a.sendHead(a.request(q, nil), len(q.body))()
	}
	var body io.Reader
	if q.body != "" {
		body = strings.NewReader(q.body)
	}
	return read(a.TB, must1(http.DefaultTransport.RoundTrip(a.request(q, body)))(a))
}

func (a *answerChecker) request(q gatewayRequest, body io.Reader) *http.Request {
	a.Helper()
	ctx, cancel := context.WithTimeout(a.Context(), patienceOfTests)
	a.Cleanup(cancel)
	req := must1(http.NewRequestWithContext(ctx, q.method, q.door+q.path, body))(a)
	for i := 0; i+1 < len(q.headers); i += 2 {
		if q.headers[i] == "Host" {
			req.Host = q.headers[i+1]
		}
		req.Header.Set(q.headers[i], q.headers[i+1])
	}
	return req
}

// sendHead announces a body and does not send it. The returned function waits for the answer.
func (a *answerChecker) sendHead(req *http.Request, length int) func() reply {
	a.Helper()
	conn := must1(net.Dial("tcp", req.URL.Host))(a)
	a.Cleanup(func() { _ = conn.Close() })
	var head bytes.Buffer
	fmt.Fprintf(&head, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n", req.URL.RequestURI(), req.URL.Host, length)
	if err := req.Header.Write(&head); err != nil {
		a.Fatal(err)
	}
	must1(conn.Write(append(head.Bytes(), "\r\n"...)))(a)
	return func() reply { return read(a.TB, must1(http.ReadResponse(bufio.NewReader(conn), req))(a)) }
}

// checkAnswer compares an answer with the document.
func (a *answerChecker) checkAnswer(q gatewayRequest, r reply) {
	a.Helper()
	what := fmt.Sprintf("%s %s with %.60q and %.200q: %d %s", q.method, q.path, q.body, q.headers, r.StatusCode, r.body)
	if r.StatusCode != q.status {
		a.Errorf("%s; want %d", what, q.status)
		return
	}
	plain, _, _ := strings.Cut(q.path, "?")
	path, item := a.find(plain)
	op := item.GetOperation(q.method)
	a.seen[q.method+" "+path+" "+strconv.Itoa(r.StatusCode)] = true
	stream := r.Header.Get("Content-Type") == "text/event-stream"
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r.Request,
			Route: &routers.Route{Spec: a.doc, Path: path, PathItem: item, Method: q.method, Operation: op}},
		Status: r.StatusCode, Header: r.Header, Body: io.NopCloser(strings.NewReader(r.body)),
		// The answer to one event has no body, and the answer to a batch has one.
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true, ExcludeResponseBody: stream || r.Header.Get("Content-Type") == linesType || r.StatusCode == 202 && r.body == ""},
	}
	if err := openapi3filter.ValidateResponse(a.Context(), input); err != nil {
		a.Errorf("%s\n%v", what, err)
	}
	a.checkHeaders(what, op, r)
	if stream {
		a.checkEvents(r.body, map[bool]string{true: "Changed", false: "Tailed"}[path == "/api/v1/live"])
	}
}

func (a *answerChecker) find(path string) (string, *openapi3.PathItem) {
	if item := a.doc.Paths.Value(path); item != nil {
		return path, item
	}
	for pattern, item := range a.doc.Paths.Map() {
		if _, fits := matchPath(pattern, path); strings.Contains(pattern, "{") && fits {
			return pattern, item
		}
	}
	a.Fatalf("%s is not in openapi.json", path)
	return "", nil
}

// checkHeaders checks that our own headers are documented.
func (a *answerChecker) checkHeaders(what string, op *openapi3.Operation, r reply) {
	a.Helper()
	response := op.Responses.Status(r.StatusCode)
	if response == nil {
		return // reported already
	}
	for name := range r.Header {
		switch name {
		case "Content-Type", "Content-Length", "Date", "Cache-Control", "Connection", "Vary", "X-Content-Type-Options":
			continue
		}
		documented := false
		for known := range response.Value.Headers {
			documented = documented || strings.EqualFold(known, name)
		}
		if !documented && r.Request.Method != http.MethodHead {
			a.Errorf("%s\nthe header %s is not documented", what, name)
		}
	}
}

// checkEvents compares the data of server-sent events with the schema.
func (a *answerChecker) checkEvents(body, of string) {
	a.Helper()
	schema := a.doc.Components.Schemas[of].Value
	end := false
	for line := range strings.Lines(body) {
		end = end || line == "event: end\n"
		data, is := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !is || end {
			continue
		}
		if err := fitsSchema(schema, data); err != nil {
			a.Errorf("%s\n%v", data, err)
		}
	}
}

// A fault of the gateway is answered by a problem too, if no answer has begun.
func TestFaultIsAsDocumented(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Ready = func(context.Context) api.Readiness { panic("a fault") } })
	a := &answerChecker{TB: t, doc: loadDocument(t), seen: map[string]bool{}}
	q := gatewayRequest{w.url, "GET", "/readyz", "", nil, 500}
	a.checkAnswer(q, a.send(q))
}
