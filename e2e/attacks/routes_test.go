//go:build slow && linux

package attacks

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// withoutToken lists the operations that need no token, with the reasons. Every path answers OPTIONS, because
// a browser sends it before it sends the token.
var withoutToken = map[string]string{
	"GET /healthz":         "Kubernetes asks it, and its answer depends on nothing",
	"HEAD /healthz":        "as GET",
	"GET /readyz":          "Kubernetes asks it; only readers get the details",
	"HEAD /readyz":         "as GET",
	"GET /v2/health/live":  "the Open Inference Protocol's probe, whose answer is empty",
	"GET /v2/health/ready": "the Open Inference Protocol's probe, whose answer is empty",
}

// included lists the roles that a caller's role includes.
var included = map[string][]string{
	"publisher": {"publish"},
	"reader":    {"read", "metrics"},
	"operator":  {"publish", "read", "metrics", "operate"},
	"approver":  {"publish", "read", "metrics", "operate", "approve"},
}

// operation is an operation of the gateway's OpenAPI document.
type operation struct {
	method, path string
	role         string // role that it needs; empty if any token is enough
	open         bool   // whether it needs no token
	attempt      bool   // whether it needs the token of an attempt
}

func (o operation) String() string { return o.method + " " + o.path }

// filled returns the path with values for its parameters.
func (o operation) filled() string {
	path := o.path
	for name, value := range map[string]string{"stream": "events", "trigger": "tell", "schedule": "nightly", "recipe": "intent", "pool": "small", "scorer": "intents",
		"path": "intent/bot-42/infer"} {
		path = strings.ReplaceAll(path, "{"+name+"}", value)
	}
	return regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "x")
}

var neededRole = regexp.MustCompile(`[Nn]eeds? the role (\w+)`)

// operations reads the OpenAPI document that the gateway serves.
func (w *world) operations() []operation {
	w.Helper()
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	a := w.do(w.request(http.MethodGet, "/api/v1/openapi.json", "", "publisher"))
	if err := json.Unmarshal([]byte(a.body), &document); err != nil || a.status != http.StatusOK {
		w.Fatalf("the document: %d, %v", a.status, err)
	}
	var all []operation
	for path, item := range document.Paths {
		for method, text := range item {
			var said struct {
				Description string
				Security    []map[string]any
			}
			if method == "parameters" || json.Unmarshal(text, &said) != nil {
				continue
			}
			o := operation{method: strings.ToUpper(method), path: path, open: said.Security != nil && len(said.Security) == 0}
			if len(said.Security) == 1 && said.Security[0]["attempt"] != nil {
				o.attempt = true
			}
			if m := neededRole.FindStringSubmatch(said.Description); m != nil {
				o.role = m[1]
			} else if !o.open && !o.attempt && !strings.Contains(said.Description, "Needs any valid token") {
				w.Errorf("the document does not say which role %s needs: write \"Needs the role …\" into its description", o)
			}
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b operation) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// badTokens returns values of the header Authorization that open nothing.
func (w *world) badTokens() map[string]string {
	good := w.tokens["approver"]
	other := []byte(good)
	other[len(other)-1] ^= 1
	return map[string]string{
		"no token":            "",
		"an expired token":    "Bearer " + w.tokens["expired"],
		"an unknown token":    "Bearer " + string(other),
		"a cut token":         "Bearer " + good[:len(good)-1],
		"a longer token":      "Bearer " + good + "a",
		"two tokens":          "Bearer " + good + " " + good,
		"a token as password": "Basic " + good,
		"a bare token":        good,
		"an empty token":      "Bearer ",
		"a JWT without a key": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJib3NzIn0.",
	}
}

// Every operation of the document that the gateway serves refuses callers without the right to it.
func TestNoRouteOpensWithoutItsToken(t *testing.T) {
	w := openWorld(t, nil)
	all := w.operations()
	t.Logf("%d operations", len(all))
	listed := maps.Clone(withoutToken)
	for _, o := range all {
		switch {
		case o.open && o.method == http.MethodOptions:
		case o.open:
			if listed[o.String()] == "" {
				t.Errorf("%s needs no token: list it in withoutToken with the reason, or give it a role", o)
			}
			delete(listed, o.String())
		default:
			w.refusesStrangers(o)
			w.refusesForeignRoles(o)
		}
	}
	for left := range listed {
		t.Errorf("%s is listed as open, and the document does not have it so", left)
	}
}

func (w *world) refusesStrangers(o operation) {
	w.Helper()
	for name, header := range w.badTokens() {
		r := w.request(o.method, o.filled(), "{}", "")
		if header != "" {
			r.Header.Set("Authorization", header)
		}
		what := fmt.Sprintf("%s with %s", o, name)
		a := w.do(r)
		if a.status != http.StatusUnauthorized {
			w.Errorf("%s: %d %.200s", what, a.status, a.body)
			continue
		}
		if o.method == http.MethodHead {
			continue
		}
		if p := w.problem(what, a); !strings.Contains(p.Detail, "token") || a.header.Get("WWW-Authenticate") == "" {
			w.Errorf("%s: the refusal does not say what to do: %s", what, a.body)
		}
		if good := w.tokens["approver"]; strings.Contains(a.body, good[:len(good)-1]) {
			w.Errorf("%s: the refusal repeats the token: %s", what, a.body)
		}
	}
}

// refusesForeignRoles checks the roles that do not include the needed one, and that a role which includes it
// is let in, because a route that refuses everyone would pass otherwise.
func (w *world) refusesForeignRoles(o operation) {
	w.Helper()
	for caller, roles := range included {
		what := fmt.Sprintf("%s by %s", o, caller)
		switch {
		case o.attempt:
			if a := w.do(w.request(o.method, o.filled(), "{}", caller)); a.status != http.StatusUnauthorized && a.status != http.StatusForbidden {
				w.Errorf("%s: %d %.200s", what, a.status, a.body)
			} else {
				w.problem(what, a)
			}
		case o.role != "" && !slices.Contains(roles, o.role):
			a := w.do(w.request(o.method, o.filled(), "{}", caller))
			if a.status != http.StatusForbidden {
				w.Errorf("%s: %d %.200s", what, a.status, a.body)
			} else if p := w.problem(what, a); !strings.Contains(p.Detail, "role "+o.role) {
				w.Errorf("%s: the refusal does not say what to do: %s", what, a.body)
			}
		case caller == "approver":
			if a := w.do(w.request(o.method, o.filled(), "{}", caller)); a.status == http.StatusUnauthorized || a.status == http.StatusForbidden {
				w.Errorf("%s: %d %.200s", what, a.status, a.body)
			}
		}
	}
}

// No method that the document lacks does anything, with or without a token.
func TestNoMethodOpensUnlisted(t *testing.T) {
	w := openWorld(t, nil)
	methods := map[string][]string{}
	paths := map[string]string{}
	for _, o := range w.operations() {
		methods[o.path], paths[o.path] = append(methods[o.path], o.method), o.filled()
	}
	for path, listed := range methods {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND", "get", "X"} {
			if slices.Contains(listed, method) {
				continue
			}
			for _, caller := range []string{"", "approver"} {
				if a := w.do(w.request(method, paths[path], "", caller)); a.status < 400 || a.status >= 500 {
					t.Errorf("%s %s by %q: %d %.200s", method, path, caller, a.status, a.body)
				}
			}
		}
	}
}

// A caller that tries rights which it lacks is seen in the log, and cannot fill the log.
func TestRefusedActsAreCounted(t *testing.T) {
	w := openWorld(t, nil)
	acts := []string{"/api/v1/keys/forget", "/api/v1/runs", "/api/v1/model/promote", "/api/v1/triggers/tell/pause"}
	const times = 50
	for range times {
		for _, path := range acts {
			if a := w.do(w.request(http.MethodPost, path, "{}", "publisher")); a.status != http.StatusForbidden {
				t.Fatalf("%s: %d %s", path, a.status, a.body)
			}
		}
	}
	lines := regexp.MustCompile(`(?m)^.*a caller lacks a right.*by=publisher.*$`).FindAllString(w.logged(), -1)
	if len(lines) < len(acts) || len(lines) > 2*len(acts) {
		t.Errorf("%d lines for %d refusals of %d acts, want one for each act:\n%s", len(lines), times*len(acts), len(acts), strings.Join(lines, "\n"))
	}
}

// Odd spellings of a path do not go around the check of the token.
func TestNoSpellingOfAPathOpens(t *testing.T) {
	w := openWorld(t, nil)
	for _, target := range []string{
		"//api/v1/streams", "/api//v1/streams", "/api/v1/streams/", "/api/v1/./streams", "/api/v1/x/../streams", "/healthz/../api/v1/streams",
		"/healthz/%2e%2e/api/v1/streams", "/%61pi/v1/streams", "/API/V1/STREAMS", "/api/v1/streams%00", "/api/v1/streams%2f", "/api/v1/streams;/healthz",
		"/api/v1/streams?/healthz", "/api/v1/streams#/healthz", "/metrics?x=/readyz", "/metrics/", "/metrics%20", "\\metrics", "/metrics\\..\\healthz",
		w.url + "/metrics", "http://evil.example/metrics", "*", "/v2/health/ready/../models/intent/bot-42", "/v2/health/live/models", "/debug/pprof/", "/debug/vars",
	} {
		for _, override := range []string{"", "X-Original-URL: /healthz\r\n", "X-Rewrite-URL: /healthz\r\n", "X-HTTP-Method-Override: OPTIONS\r\n", "X-Forwarded-For: 127.0.0.1\r\n"} {
			got := w.raw("GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" + override + "Connection: close\r\n\r\n")
			if !strings.HasPrefix(got, "HTTP/1.1 4") {
				t.Errorf("%s %s: %.200q", target, override, got)
			}
		}
	}
}
