package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/scoring/infer"
)

// modelsOfTests answers like internal/scoring/oip, as far as these tests need. The platform's
// tests use real models.
var modelsOfTests Inference = func(_ context.Context, w http.ResponseWriter, r *http.Request, body []byte) {
	status := http.StatusOK
	switch {
	case strings.HasPrefix(r.URL.Path, "/v2/models/none"):
		status = http.StatusNotFound
	case strings.HasPrefix(r.URL.Path, "/v2/models/broken"):
		status = http.StatusInternalServerError
	case strings.HasPrefix(r.URL.Path, "/v2/models/away"):
		status = http.StatusServiceUnavailable
	case strings.HasPrefix(r.URL.Path, inferencePath) && (r.Method == http.MethodPost) != strings.HasSuffix(r.URL.Path, "/infer"):
		w.Header().Set("Allow", "POST")
		status = http.StatusMethodNotAllowed
	case r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v2/repository/models/broken"):
		status = http.StatusInternalServerError
	case r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v2/repository/models/none"):
		status = http.StatusNotFound
	case r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v2/repository/models/away"), string(body) == "away":
		status = http.StatusServiceUnavailable
	case r.Method == http.MethodPost && string(body) != `{"inputs":[]}`:
		status = http.StatusBadRequest
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if r.URL.Path == "/v2/repository/index" && status == http.StatusOK {
		_, _ = io.WriteString(w, `[]`)
		return
	}
	_, _ = io.WriteString(w, `{"error":"`+r.URL.Path+`"}`)
}

// modelsAway is the handler of a process that cannot answer.
var modelsAway Inference = func(_ context.Context, w http.ResponseWriter, _ *http.Request, _ []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `{"error":"away"}`)
}

// A model's name has slashes, and a client may write them as %2F.
func TestModelsAreAskedByTheirNames(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, testConfig, embedded.Options{}, func(o *Options) {
		o.Inference = modelsOfTests
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: read")+callerLine("one", "role: read, keys: [bot-1]")+callerLine("member", "role: read")+
			"teams:\n  chat: {keys: [bot-1], recipes: [intent], members: [member]}\n")
	})
	as := func(name string) []string { return []string{"Authorization", "Bearer " + tokenFor(name)} }
	for path, want := range map[string]string{"/v2/models/intent/bot-1/infer": "/v2/models/intent/bot-1/infer", "/v2/models/intent%2Fbot-1/versions/2/infer": "/v2/models/intent/bot-1/versions/2/infer"} {
		if r := w.post(path, `{"inputs":[]}`, as("all")...); r.StatusCode != http.StatusOK || !strings.Contains(r.body, want) {
			t.Errorf("%s: %s %s", path, r.Status, r.body)
		}
	}
	wantFailure(t, w.post("/v2/models/intent/bot-1/infer", `{"inputs":[]}`, as("one")...), http.StatusForbidden, "takes a key")
	wantFailure(t, w.do("GET", "/v2/models/intent/bot-1", "", as("one")...), http.StatusForbidden, "takes a key")
	wantFailure(t, w.post("/v2/repository/index", "", as("one")...), http.StatusForbidden, "takes a key")
	wantFailure(t, w.post("/v2/repository/models/intent/bot-1/unload", "", as("all")...), http.StatusForbidden, "operate")
	wantFailure(t, w.post("/v2/repository/models/intent/bot-1/unload", "", as("member")...), http.StatusForbidden, "the role operate only for some keys")
	wantFailure(t, w.do("GET", "/v2/health/no", "", as("all")...), http.StatusNotFound, "/v2/models/NAME")
	wantFailure(t, w.do("GET", "/v2/health/no", ""), http.StatusUnauthorized, "Authorization: Bearer")
	wantFailure(t, w.do("DELETE", "/v2", "", as("all")...), http.StatusMethodNotAllowed, "GET")
	if r := w.do("GET", "/v2/health/live", ""); r.StatusCode != http.StatusOK {
		t.Errorf("who probes needs a token: %s", r.Status)
	}
	wantProblem(t, w.do("GET", "/api/v1/schedules/a/b", "", as("all")...), http.StatusNotFound, api.NotFound, "/api/v1/schedules/a/b")
}

// wantFailure checks that an answer is a failure in the form of the protocol.
func wantFailure(t *testing.T, r reply, status int, says string) {
	t.Helper()
	var f inferenceFailure
	if err := json.Unmarshal([]byte(r.body), &f); err != nil || r.StatusCode != status || !strings.Contains(f.Error, says) || r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("the answer is %s %s, want %d and %q", r.Status, r.body, status, says)
	}
}

// inferenceAsks get every documented answer of the Open Inference Protocol.
func (d *testGateways) inferenceAsks(long, stranger []string) (all []gatewayRequest) {
	for path, role := range map[string][]string{"/v2": d.reader, "/v2/health/live": nil, "/v2/health/ready": nil, "/v2/models/intent/bot-1": d.reader} {
		all = append(all, gatewayRequest{d.open, "GET", path, "", nil, 200}, gatewayRequest{d.open, "GET", path, "", stranger, 403},
			gatewayRequest{d.guarded, "GET", path, "", role, 501}, gatewayRequest{d.narrow, "GET", path, "", append(long, role...), 431})
		if role != nil {
			all = append(all, gatewayRequest{d.guarded, "GET", path, "", nil, 401}, gatewayRequest{d.guarded, "GET", path, "", d.publisher, 403})
		}
	}
	const infer, body = "/v2/models/intent/bot-1/infer", `{"inputs":[]}`
	for model, status := range map[string]int{"none": 404, "broken": 500, "away": 503} {
		all = append(all, gatewayRequest{d.open, "GET", "/v2/models/" + model, "", nil, status}, gatewayRequest{d.open, "POST", "/v2/models/" + model + "/infer", body, nil, status})
	}
	for path, role := range map[string][]string{"/v2/repository/index": d.reader, "/v2/repository/models/intent/bot-1/load": d.operator} {
		all = append(all,
			gatewayRequest{d.open, "POST", path, body, nil, 200},
			gatewayRequest{d.open, "POST", path, body, stranger, 403},
			gatewayRequest{d.open, "POST", path, "away", nil, 503},
			gatewayRequest{d.guarded, "POST", path, body, nil, 401},
			gatewayRequest{d.guarded, "POST", path, body, d.publisher, 403},
			gatewayRequest{d.guarded, "POST", path, body, role, 501},
			gatewayRequest{d.narrow, "POST", path, strings.Repeat("x", 30<<10), role, 429},
			gatewayRequest{d.narrow, "POST", path, "late", role, 408},
			gatewayRequest{d.narrow, "POST", path, body, append(long, role...), 431},
			gatewayRequest{d.narrow, "POST", path, strings.Repeat("x", announcedLength+1), role, 413})
	}
	return append(all,
		gatewayRequest{d.open, "POST", "/v2/repository/index", "{", nil, 400},
		gatewayRequest{d.open, "POST", "/v2/repository/models/none/load", body, nil, 404},
		gatewayRequest{d.open, "POST", "/v2/repository/models/broken/load", body, nil, 500},
		gatewayRequest{d.busy, "GET", "/v2/health/ready", "", nil, 503},
		gatewayRequest{d.open, "GET", infer, "", nil, 405},
		gatewayRequest{d.open, "POST", "/v2/models/intent/bot-1", body, nil, 405},
		gatewayRequest{d.open, "POST", infer, body, nil, 200},
		gatewayRequest{d.open, "POST", infer, body, stranger, 403},
		gatewayRequest{d.open, "POST", infer, "{", nil, 400},
		gatewayRequest{d.guarded, "POST", infer, body, nil, 401},
		gatewayRequest{d.guarded, "POST", infer, body, d.publisher, 403},
		gatewayRequest{d.guarded, "POST", infer, body, d.reader, 501},
		gatewayRequest{d.narrow, "POST", infer, strings.Repeat("x", 30<<10), d.reader, 429},
		gatewayRequest{d.narrow, "POST", infer, "late", d.reader, 408},
		gatewayRequest{d.narrow, "POST", infer, body, append(long, d.reader...), 431},
		gatewayRequest{d.narrow, "POST", infer, strings.Repeat("x", announcedLength+1), d.reader, 413})
}

// The memory of a model's run counts against the room of all requests, before it is taken.
func TestARunTakesRoomOfTheGateway(t *testing.T) {
	t.Parallel()
	running, end := make(chan struct{}), make(chan struct{})
	var handler Inference = func(ctx context.Context, w http.ResponseWriter, _ *http.Request, _ []byte) {
		if err := infer.BudgetOf(ctx).Take(40 << 20); err != nil {
			w.Header().Set("Retry-After", "1")
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		running <- struct{}{}
		<-end
	}
	w := newWorldOf(t, testConfig, embedded.Options{}, func(o *Options) { o.Inference, o.Limits.UnderWay = handler, 100<<20 })
	const path = "/v2/models/intent/bot-1/infer"
	first := make(chan reply, 1)
	go func() { first <- w.post(path, `{"inputs":[]}`) }()
	<-running
	if r := w.post(path, `{"inputs":[]}`); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" ||
		!strings.Contains(r.body, "ask for fewer rows at once, or again later") {
		t.Errorf("a run beyond the room: %s %s", r.Status, r.body)
	}
	close(end)
	if r := <-first; r.StatusCode != http.StatusOK {
		t.Errorf("%s %s", r.Status, r.body)
	}
	w.waitUntil("the room is returned", func() bool { return w.gateway.room.takenBytes() == 0 })
}
