package gateway

import (
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/embedded"
)

// attemptDoors are gateways for the requests of agents.
type attemptDoors struct {
	*trainingWorld
	open, guarded, narrow, slow, down, none string
	now, then                               *agentAttempt // an attempt under way, and a superseded one
}

func openAttemptDoors(t testing.TB, d *testGateways) *attemptDoors {
	t.Helper()
	m := newMill(t, nil)
	of := func(m *trainingWorld, change func(*Options)) string {
		return "http://" + m.openGateway(func(o *Options) {
			o.Runs, o.Ledger, o.Store, o.Tokens = m.foreman, m.ledger, m.store, m.tokens
			change(o)
		}).Addr()
	}
	a := &attemptDoors{trainingWorld: m, open: m.url, none: d.busy}
	a.guarded = of(m, func(o *Options) { o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("reader", "role: read")) })
	a.narrow = of(m, func(o *Options) {
		o.Limits.Headers, o.Limits.Caller = 8<<10, 16<<10
	})
	a.slow = of(m, func(o *Options) { o.Limits.ReadHeader, o.Limits.BodyGrace = 2*time.Second, 200*time.Millisecond })
	away := newMillOn(t, embedded.Options{}, func(o *Options) { o.Limits.Look = 200 * time.Millisecond })
	a.down = away.url
	m.must(away.servers.Close())
	a.then = m.beginRun("fit", "bot-1")
	m.loseAttempt(a.then.run, 1)
	a.now = m.waitForAttempt(a.then.run, 2)
	return a
}

func (a *agentAttempt) bearer(more ...string) []string {
	return append([]string{"Authorization", "Bearer " + a.token}, more...)
}

// attemptAsks get every documented answer to agents, and about logs.
func (d *testGateways) attemptAsks(long, stranger []string) (all []gatewayRequest) {
	a := openAttemptDoors(d.TB, d)
	object := sumOf("hello")
	file := a.now.putObject("model.onnx", "hello")
	tree := must1(a.store.Tree(d.Context(), []api.File{file}))(d)
	files := string(must1(json.Marshal(api.CheckpointTaken{Files: []api.File{file}}))(d))
	missing := `{"objects":[{"digest":"` + object + `","size":5}]}`
	batch := string(must1(hex.DecodeString(object))(d)) + "\x00\x00\x00\x00\x00\x00\x00\x05hello"
	type route struct {
		of, body string
		status   int
		bad      string // an invalid body, or an invalid query if it begins with a question mark
		most     int    // maximum size of the body
	}
	routes := map[string]route{
		"GET ":                  {"", "", 200, "", 0},
		"GET /events":           {"/events", "", 200, "", 0},
		"GET /files":            {"/files?tree=" + tree.Tree, "", 200, "?tree=x", 0},
		"POST /objects/missing": {"/objects/missing", missing, 200, "{", 2 << 20},
		"POST /objects":         {"/objects", batch, 204, "hello", 16 << 20},
		"POST /object":          {"/object?digest=" + object + "&size=5", "hello", 204, "?digest=x", 0},
		"GET /object":           {"/object?digest=" + object, "", 200, "?digest=x", 0},
		"POST /beat":            {"/beat", "", 200, "?part=worker&index=1", 0},
		"POST /progress":        {"/progress", `{"step":1,"metrics":{"loss":0.5}}` + "\n", 204, "{", api.MaxSteps * api.MaxStep},
		"POST /log":             {"/log?seq=0", outLine + "hello\n", 204, "?seq=-1", api.MaxLogChunk},
		"POST /checkpoint":      {"/checkpoint", files, 200, "{", api.MaxFinish},
		"POST /finish":          {"/finish", finishOf(d, tidemill.OutcomeFailed, true), 200, "{", api.MaxFinish},
	}
	for key, r := range routes {
		method, _, _ := strings.Cut(key, " ")
		now, then, headers := a.now, a.then, []string(nil)
		if r.of == "/objects" {
			headers = []string{"Content-Type", api.ObjectsType}
			all = append(all, gatewayRequest{a.open, method, now.path(r.of), r.body, now.bearer("Content-Type", "text/plain"), 415})
		}
		one := now
		if r.of == "/finish" { // other requests come before and after this one, so it ends an attempt that they do not use
			one = a.trainingWorld.waitForAttempt(a.requestRun("fit", "bot-2", "2"), 1)
		}
		all = append(all, gatewayRequest{a.open, method, one.path(r.of), r.body, one.bearer(headers...), r.status},
			gatewayRequest{a.open, method, now.path(r.of), r.body, headers, 401},
			gatewayRequest{a.open, method, now.path(r.of), r.body, then.bearer(headers...), 401},
			gatewayRequest{a.guarded, method, now.path(r.of), r.body, append(tokenHeader("reader"), headers...), 401},
			gatewayRequest{a.open, method, now.path(r.of), r.body, now.bearer(append(headers, stranger...)...), 403},
			gatewayRequest{a.open, method, then.path(r.of), r.body, then.bearer(headers...), 409},
			gatewayRequest{a.narrow, method, now.path(r.of), r.body, now.bearer(append(headers, long...)...), 431},
			gatewayRequest{a.none, method, now.path(r.of), r.body, now.bearer(headers...), 501},
			gatewayRequest{a.down, method, now.path(r.of), r.body, now.bearer(headers...), 503})
		path, _, _ := strings.Cut(r.of, "?")
		switch {
		case strings.HasPrefix(r.bad, "?"):
			all = append(all, gatewayRequest{a.open, method, now.path(path + r.bad), r.body, now.bearer(headers...), 400})
		case r.bad != "":
			all = append(all, gatewayRequest{a.open, method, now.path(r.of), r.bad, now.bearer(headers...), 400})
		}
		if r.most > 0 {
			all = append(all, gatewayRequest{a.open, method, now.path(r.of), strings.Repeat(" ", r.most+1), now.bearer(headers...), 413})
		}
		if method == http.MethodPost && r.body != "" {
			much := strings.Repeat(" ", 30<<10)
			if r.of == "/object?digest="+object+"&size=5" {
				much = r.body // it passes through a buffer that is larger than the share
			}
			all = append(all, gatewayRequest{a.slow, method, now.path(r.of), "late!", now.bearer(headers...), 408},
				gatewayRequest{a.narrow, method, now.path(r.of), much, now.bearer(headers...), 429})
		}
	}
	none := sumOf("nothing")
	gone := api.File{Path: "x", Digest: none, Size: 7}
	all = append(all, gatewayRequest{a.open, "POST", a.now.path("/finish"), finishOf(d, tidemill.OutcomeSucceeded, false, gone), a.now.bearer(), 404},
		gatewayRequest{a.open, "POST", a.now.path("/checkpoint"), string(must1(json.Marshal(api.CheckpointTaken{Files: []api.File{gone}}))(d)), a.now.bearer(), 404})
	all = append(all, gatewayRequest{a.open, "GET", a.now.path("/files?tree=" + none), "", a.now.bearer(), 404},
		gatewayRequest{a.open, "GET", a.now.path("/object?digest=" + none), "", a.now.bearer(), 404},
		gatewayRequest{a.narrow, "GET", a.now.path("/object?digest=" + object), "", a.now.bearer(), 429})
	all = append(all, a.nextAsks(long, stranger)...)
	return append(all, a.logAsks(d, long, stranger)...)
}

// nextAsks get every documented answer to pods that wait for another run.
func (a *attemptDoors) nextAsks(long, stranger []string) []gatewayRequest {
	warm := "http://" + a.trainingWorld.openGateway(func(o *Options) {
		o.Runs, o.Ledger, o.Store, o.Tokens, o.Warm = a.foreman, a.ledger, a.store, a.tokens, a.warm
	}).Addr()
	first, second := a.endedAttempt("bot-7"), a.endedAttempt("bot-8")
	path := first.path("/next")
	soon, never := `{"pod":"p","seconds":0.001}`, `{"pod":"q","seconds":3600}`
	a.Cleanup(a.offerNext(second.name, "run7-1"))
	return []gatewayRequest{
		{warm, "POST", second.path("/next"), never, second.bearer(), 200}, {warm, "POST", path, soon, first.bearer(), 204},
		{warm, "POST", path, `{"pod":"p"}`, first.bearer(), 400}, {warm, "POST", path, `{"seconds":1}`, first.bearer(), 400},
		{warm, "POST", path, soon, nil, 401}, {warm, "POST", path, soon, second.bearer(), 401},
		{warm, "POST", path, soon, first.bearer(stranger...), 403}, {warm, "POST", a.now.path("/next"), soon, a.now.bearer(), 409},
		{warm, "POST", path, strings.Repeat(" ", api.MaxFinish+1), first.bearer(), 413}, {a.slow, "POST", path, "late!", first.bearer(), 408},
		{a.narrow, "POST", path, strings.Repeat(" ", 30<<10), first.bearer(), 429}, {a.narrow, "POST", path, soon, first.bearer(long...), 431},
		{a.none, "POST", path, soon, first.bearer(), 501}, {a.down, "POST", path, soon, first.bearer(), 503},
	}
}

// logAsks get every documented answer about the log of a run.
func (a *attemptDoors) logAsks(d *testGateways, long, stranger []string) []gatewayRequest {
	path := "/api/v1/runs/" + a.now.run + "/log"
	all := []gatewayRequest{{a.open, "GET", path, "", nil, 200}, {a.guarded, "GET", path + "?attempt=1&timestamps=true", "", tokenHeader("reader"), 200},
		{a.open, "GET", path + "?attempt=x", "", nil, 400}, {a.guarded, "GET", path, "", nil, 401}, {a.open, "GET", path, "", stranger, 403},
		{a.open, "GET", "/api/v1/runs/nowhere/log", "", nil, 404}, {a.narrow, "GET", path, "", long, 431},
		{a.none, "GET", path, "", nil, 501}, {a.down, "GET", path, "", nil, 503}}
	own := a.trainingWorld.openGateway(func(o *Options) {
		o.Runs, o.Ledger, o.Store, o.Tokens = a.foreman, a.ledger, a.store, a.tokens
		o.Access, o.Limits.OwnTails = openGuard(d.TB, "version: 1\ntokens:\n"+callerLine("reader", "role: read")), -1
	})
	return append(all, gatewayRequest{"http://" + own.Addr(), "GET", path + "?follow=true", "", tokenHeader("reader"), 429})
}

func finishOf(t testing.TB, o tidemill.Outcome, permanent bool, files ...api.File) string {
	return string(must1(json.Marshal(api.Finish{Outcome: o, Permanent: permanent, Files: files}))(t))
}
