package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/ops/telemetry"
)

func TestAnOpenDoorIsForLoopback(t *testing.T) {
	t.Parallel()
	for listen, open := range map[string]bool{
		"127.0.0.1:0": true, "[::1]:0": true, "localhost:0": true, "127.9.9.9:80": true,
		":0": false, "0.0.0.0:0": false, "[::]:0": false, "192.0.2.1:80": false, "nonsense": false,
	} {
		if err := checkOpen(listen, false); (err == nil) != open {
			t.Errorf("%s: %v", listen, err)
		} else if err != nil && listen != "nonsense" && !strings.Contains(err.Error(), "tidemill token new") {
			t.Errorf("%s: no next step in: %v", listen, err)
		}
	}
	if err := checkOpen("0.0.0.0:0", true); err != nil {
		t.Error(err)
	}
}

func TestIsLoopback(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST:80": true, "127.0.0.1": true, "127.0.0.1:80": true, "127.1.2.3": true, "[::1]": true, "[::1]:80": true, "::1": true,
		"": false, ":80": false, "localhost.evil.example": false, "127.0.0.1.evil.example": false, "evil": false, "10.0.0.1": false, "[::2]:80": false, "2130706433": false,
	} {
		if isLoopback(host) != want {
			t.Errorf("%q: %t", host, !want)
		}
	}
}

func TestDetailsAreForReaders(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, contractAccess())
	w := newWorld(t, func(o *Options) { o.Access = guard })
	for name, want := range map[string]bool{"all": true, "reader": true, "shop": false, "unknown": false, "": false} {
		var header []string
		if name != "" {
			header = tokenHeader(name)
		}
		r := w.do(http.MethodGet, "/readyz", "", header...)
		var state api.Readiness
		if err := json.Unmarshal([]byte(r.body), &state); err != nil || r.StatusCode != http.StatusOK || len(state.Checks) != 3 {
			t.Fatalf("%d %s %v", r.StatusCode, r.body, err)
		}
		for _, c := range state.Checks {
			if (c.Detail != "") != want || c.Name == "" || c.Status == "" {
				t.Errorf("%q is told %+v", name, c)
			}
		}
	}
}

// A token of three arbitrary texts with dots between them does not make a caller a reader.
func TestTheIssuersFaultsAreNotForStrangers(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, contractAccess()+"oidc: {issuer: \"https://127.0.0.1:1/inner\", audience: a, roles: [{claim: c, value: v, role: read}]}\n")
	w := newWorld(t, func(o *Options) { o.Access = guard })
	r := w.do(http.MethodGet, "/api/v1/streams", "", "Authorization", "Bearer eyJhbGciOiJSUzI1NiJ9.e30.x")
	if p := problemOf(t, r); p.Type != api.ProblemBase+api.Unavailable || strings.Contains(r.body, "127.0.0.1") || strings.Contains(r.body, "inner") {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	if r := w.do(http.MethodGet, "/readyz", "", tokenHeader("reader")...); !strings.Contains(r.body, "inner") {
		t.Errorf("a reader is told %s", r.body)
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	tel := must1(telemetry.Start(t.Context(), telemetry.Options{Getenv: func(string) string { return "" }}))(t)
	m := must1((&Gateway{}).newMetrics(tel.Registry()))(t)
	rs := newRoutes([]route{
		{method: "GET", path: "/a"}, {method: "POST", path: "/a"}, {method: "GET", path: "/a/{x}"},
		{method: "GET", path: "/a/{x}/b"}, {method: "GET", path: "/a/fixed"},
	}, m)
	for path, want := range map[string]string{
		"/a": "/a ", "/a/1": "/a/{x} 1", "/a/1/b": "/a/{x}/b 1", "/a/fixed": "/a/fixed ", "/a/b/b": "/a/{x}/b b",
		"": "", "/": "", "/a/": "", "/a//b": "", "/a/1/": "", "/a/1/b/": "", "/a/1/2": "", "/a/1/2/b": "", "/A": "", "a": "",
	} {
		same, value := rs.find(path)
		got := ""
		if same != nil {
			got = same[0].path + " " + value
		}
		if got != want {
			t.Errorf("%q finds %q, want %q", path, got, want)
		}
	}
	same, _ := rs.find("/a")
	if routeOf(same, "POST").method != "POST" || routeOf(same, "PUT") != nil || allowHeader(same) != "OPTIONS, GET, POST" {
		t.Error(allowHeader(same))
	}
}

func TestAPanicIsAnAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.gateway.routes.add(&route{method: http.MethodGet, path: "/early", role: access.Read, measure: w.gateway.metrics.of("GET /early"),
		handle: func(http.ResponseWriter, *request) *api.Problem { panic("early") }})
	w.gateway.routes.add(&route{method: http.MethodGet, path: "/late", role: access.Read, measure: w.gateway.metrics.of("GET /late"),
		handle: func(w http.ResponseWriter, _ *request) *api.Problem {
			w.WriteHeader(http.StatusOK)
			panic("late")
		}})
	r := w.do(http.MethodGet, "/early", "")
	if p := problemOf(t, r); r.StatusCode != http.StatusInternalServerError || p.Type != api.ProblemBase+api.Internal || strings.Contains(r.body, "early") {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	if answer := w.sendRaw("GET /late HTTP/1.1\r\nHost: localhost\r\n\r\n"); len(answer) != 0 {
		t.Errorf("half an answer: %q", answer)
	}
	if r := w.post("/events", "", eventHeaders("1")...); r.StatusCode != http.StatusAccepted {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	if shown := w.do(http.MethodGet, "/metrics", "").body; !strings.Contains(shown, `tidemill_gateway_requests_total{code="500",route="GET /early"} 1`) {
		t.Error("the panic is not counted")
	}
}
