package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/runs/scheduler"
)

// The routes of an attempt are closed to every other caller.
func TestStrangersAtTheDoorOfAttempts(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	other := m.waitForAttempt(m.requestRun("fit", "bot-2", "2"), 1)
	number := a.run + "-"
	for name, c := range map[string]struct{ attempt, authorization string }{
		"no token":             {a.name, ""},
		"an empty token":       {a.name, "Bearer "},
		"another scheme":       {a.name, "Basic " + a.token},
		"no scheme":            {a.name, a.token},
		"another run's token":  {a.name, "Bearer " + other.token},
		"a token of people's":  {a.name, "Bearer tm_all"},
		"a longer token":       {a.name, "Bearer " + a.token + "a"},
		"capitals":             {a.name, "Bearer " + strings.ToUpper(a.token)},
		"an attempt to come":   {number + "2", "Bearer " + a.token},
		"attempt 0":            {number + "0", "Bearer " + a.token},
		"attempt -1":           {number + "-1", "Bearer " + a.token},
		"attempt 01":           {number + "01", "Bearer " + a.token},
		"a large number":       {number + "99999999999999999999", "Bearer " + a.token},
		"no number":            {a.run, "Bearer " + a.token},
		"no run":               {"-1", "Bearer " + a.token},
		"an unknown run":       {strings.Repeat("a", 26) + "-1", "Bearer " + a.token},
		"a path":               {"..%2f" + a.name, "Bearer " + a.token},
		"a glob":               {"*-1", "Bearer " + a.token},
		"another's name":       {other.name, "Bearer " + a.token},
		"its name in capitals": {strings.ToUpper(a.name), "Bearer " + a.token},
	} {
		for _, of := range []string{"GET ", "GET /events", "POST /beat", "POST /finish", "POST /objects/missing"} {
			method, path, _ := strings.Cut(of, " ")
			var headers []string
			if c.authorization != "" {
				headers = []string{"Authorization", c.authorization}
			}
			r := m.do(method, "/agent/v1/attempts/"+c.attempt+path, "", headers...)
			if r.StatusCode != http.StatusUnauthorized && r.StatusCode != http.StatusNotFound || r.StatusCode == http.StatusNotFound && name != "a path" {
				t.Errorf("%s at %s: %d %s", name, of, r.StatusCode, r.body)
			}
			if strings.Contains(r.body, "superseded") || strings.Contains(r.body, other.token) {
				t.Errorf("%s is told %s", name, r.body)
			}
		}
	}
	if run := m.runOf(a.run); run.State != tidemill.RunRunning || run.Attempts[0].Outcome != "" {
		t.Errorf("%+v", run)
	}
}

// The token of an attempt opens only that attempt's routes.
func TestAnAttemptsTokenOpensNothingElse(t *testing.T) {
	t.Parallel()
	m := newMill(t, func(o *Options) { o.Access = openGuard(t, contractAccess()) })
	a := m.beginRun("fit", "bot-1")
	for _, r := range m.gateway.routeTable() {
		if r.role == anyone || isOfAttempt(r.role) {
			continue
		}
		path := strings.NewReplacer("{run}", a.run, "{stream}", "facts", "{trigger}", "x", "{schedule}", "x", "{id}", "x", "{recipe}", "fit", "{pool}", "default").Replace(r.path)
		if got := m.do(r.method, path, "", a.bearer()...); got.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s %s: %d %s", r.method, path, got.StatusCode, got.body)
		}
	}
	if r := a.get(""); r.StatusCode != http.StatusOK {
		t.Errorf("at its own door: %d %s", r.StatusCode, r.body)
	}
}

// A page from the web is refused with an attempt's token as without a token.
func TestPagesOfOthersAtTheDoorOfAttempts(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	for _, from := range [][]string{{"Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"}, {"Origin", "null"}, {"Host", "evil.example"}} {
		if r := a.send(http.MethodPost, "/beat", "", from...); r.StatusCode != http.StatusForbidden {
			t.Errorf("%v: %d %s", from, r.StatusCode, r.body)
		}
	}
}

// The bodies of an attempt's requests are validated.
func TestHostileWordsOfAnAttempt(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	good := a.putObject("good", "good")
	named := func(f api.File, path string) api.File { f.Path = path; return f }
	sized := func(f api.File, size int64) api.File { f.Size = size; return f }
	files := func(all ...api.File) string { return string(must1(json.Marshal(api.CheckpointTaken{Files: all}))(t)) }
	unknown := api.File{Path: "x", Digest: sumOf("was never put"), Size: 3}
	huge := a.putObject("huge", strings.Repeat("x", 2<<20))
	for _, c := range []struct {
		name, path, body string
		status           int
		slug, says       string
	}{
		{"no JSON", "/finish", "{", 400, api.InvalidRequest, ""},
		{"no body", "/finish", "", 400, api.InvalidRequest, ""},
		{"no outcome", "/finish", "{}", 400, api.InvalidRequest, "outcome"},
		{"an outcome of its own", "/finish", `{"outcome":"champion"}`, 400, api.InvalidRequest, "outcome"},
		{"metrics that are text", "/finish", `{"outcome":"failed","result":{"metrics":{"a":"b"}}}`, 400, api.InvalidRequest, ""},
		{"NaN", "/finish", `{"outcome":"failed","result":{"metrics":{"a":NaN}}}`, 400, api.InvalidRequest, ""},
		{"out of the folder", "/finish", finishOf(t, tidemill.OutcomeSucceeded, false, named(good, "../../etc/passwd")), 400, api.InvalidRequest, ""},
		{"absolute", "/checkpoint", files(named(good, "/etc/passwd")), 400, api.InvalidRequest, ""},
		{"dots in between", "/checkpoint", files(named(good, "a/../b")), 400, api.InvalidRequest, ""},
		{"a dot", "/checkpoint", files(named(good, "./b")), 400, api.InvalidRequest, ""},
		{"no path", "/checkpoint", files(named(good, "")), 400, api.InvalidRequest, ""},
		{"a zero byte", "/checkpoint", files(named(good, "a\x00b")), 400, api.InvalidRequest, ""},
		{"twice the same", "/checkpoint", files(good, good), 400, api.InvalidRequest, ""},
		{"a file that is a folder", "/checkpoint", files(good, named(good, "good/er")), 400, api.InvalidRequest, ""},
		{"what was not put", "/checkpoint", files(unknown), 404, api.UnknownData, "put first"},
		{"no digest", "/checkpoint", files(api.File{Path: "x", Digest: "../x"}), 400, api.InvalidRequest, ""},
		{"another size", "/checkpoint", files(sized(good, 5)), 404, api.UnknownData, "put first"},
		{"less than nothing", "/checkpoint", files(sized(good, -1)), 400, api.InvalidRequest, ""},
		{"more than its output may be", "/finish", finishOf(t, tidemill.OutcomeSucceeded, false, huge), 413, api.TooLarge, "1048576"},
		{"steps that are none", "/progress", "{}\n[]\n", 400, api.InvalidRequest, "line 2"},
		{"a step beyond numbers", "/progress", `{"step":1e999}`, 400, api.InvalidRequest, "line 1"},
		{"too many steps", "/progress", strings.Repeat("{}\n", api.MaxSteps+1), 413, api.TooLarge, ""},
		{"a long step", "/progress", `{"metrics":{"` + strings.Repeat("a", api.MaxStep) + `":1}}`, 413, api.TooLarge, ""},
		{"a chunk of no number", "/log", "x", 400, api.InvalidRequest, "seq"},
		{"a chunk below nothing", "/log?seq=-1", "x", 400, api.InvalidRequest, "seq"},
		{"a chunk beyond counting", "/log?seq=99999999999999999999", "x", 400, api.InvalidRequest, "seq"},
		{"an unknown parameter", "/log?seq=0&run=x", "x", 400, api.InvalidRequest, "run"},
		{"a tree of a path", "/files?tree=../objects", "", 400, api.InvalidRequest, "tree"},
		{"another's bytes", "/object?digest=" + sumOf("a") + "&size=1", "b", 400, api.InvalidRequest, ""},
		{"fewer bytes", "/object?digest=" + sumOf("ab") + "&size=2", "a", 400, api.InvalidRequest, ""},
		{"a digest of a path", "/object?digest=..%2f..%2fx&size=1", "b", 400, api.InvalidRequest, "digest"},
	} {
		method := http.MethodPost
		if strings.HasPrefix(c.path, "/files") {
			method = http.MethodGet
		}
		r := a.send(method, c.path, c.body)
		if p := problemOf(t, r); r.StatusCode != c.status || p.Type != api.ProblemBase+c.slug || !strings.Contains(p.Detail, c.says) {
			t.Errorf("%s: %d %s", c.name, r.StatusCode, r.body)
		}
	}
	if run := m.runOf(a.run); run.State != tidemill.RunRunning {
		t.Errorf("%+v", run)
	}
	if _, err := m.store.Checkpoint(t.Context(), a.run); err == nil {
		t.Error("a checkpoint was set")
	}
	var done api.Finished
	if a.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeSucceeded, Files: []api.File{good}}, &done); done.State != tidemill.RunSucceeded {
		t.Errorf("%+v", done)
	}
}

// The log of an attempt is limited, and one chunk sent twice counts once.
func TestTheLogOfAnAttemptIsBounded(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	chunk := strings.Repeat("x", api.MaxLogChunk-1) + "\n" // one of the two chunks that the plan and the slack allow
	for _, c := range []struct{ seq, status int }{{0, 204}, {0, 204}, {1, 204}, {0, 204}, {1, 204}, {2, 413}, {1, 204}} {
		if r := a.post("/log?seq="+itoa(c.seq), chunk); r.StatusCode != c.status {
			t.Errorf("chunk %d: %d %s", c.seq, r.StatusCode, r.body)
		}
	}
}

// The limit also holds if chunks are numbered downwards, or if a small chunk is replaced by a
// large one.
func TestTheLogOfAnAttemptIsBoundedHoweverItIsNumbered(t *testing.T) {
	t.Parallel()
	for name, numbers := range map[string]func(i int) (seq, bytes int){
		"down":       func(i int) (int, int) { return 1000 - i, 100 },
		"with gaps":  func(i int) (int, int) { return 7 * i, 100 },
		"over small": func(i int) (int, int) { return i % 40, 1 + 99*min(i/40, 1) },
		"one":        func(i int) (int, int) { return 3, i },
	} {
		var s attemptCache
		s.remember("a", &tidemill.Run{ID: "run"}, time.Now())
		stored := map[int]int{}
		for i := range 400 {
			if seq, bytes := numbers(i); s.countLogChunk("a", "", seq, bytes, 1000) {
				stored[seq] = bytes
			}
		}
		sum := 0
		for _, bytes := range stored {
			sum += bytes
		}
		if sum > 1000 || sum == 0 {
			t.Errorf("%s: %d bytes are stored", name, sum)
		}
	}
}

// The report of an attempt's end is limited, or the log would refuse the fact, and the run
// would never end.
func TestALastWordFitsTheLog(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	many := map[string]float64{}
	for i := range 60_000 {
		many["metric-of-a-hostile-agent-"+itoa(i)] = 1
	}
	long := strings.Repeat("x", api.MaxResult)
	for name, said := range map[string]api.Finish{
		"many metrics": {Outcome: tidemill.OutcomeFailed, Result: tidemill.Result{Metrics: many}},
		"many stages":  {Outcome: tidemill.OutcomeFailed, Result: tidemill.Result{Stages: make([]tidemill.Stage, 20_000)}},
		"a long node":  {Outcome: tidemill.OutcomeFailed, Where: tidemill.Where{Node: long}},
	} {
		r := a.post("/finish", string(must1(json.Marshal(said))(t)))
		if p := problemOf(t, r); r.StatusCode != http.StatusRequestEntityTooLarge || p.Type != api.ProblemBase+api.TooLarge {
			t.Errorf("%s: %d %s", name, r.StatusCode, r.body)
		}
	}
	var done api.Finished
	if a.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeSucceeded, Files: []api.File{a.putObject("model.onnx", "fits")}}, &done); done.State != tidemill.RunSucceeded {
		t.Errorf("%+v", done)
	}
}

// An attempt that sends too slowly is cut off, and its memory is returned.
func TestASlowAttemptIsGivenUp(t *testing.T) {
	t.Parallel()
	m := newMill(t, func(o *Options) { o.Limits.ReadHeader, o.Limits.BodyGrace = 2*time.Second, 100*time.Millisecond })
	a := m.beginRun("fit", "bot-1")
	asked := &answerChecker{TB: t}
	for _, path := range []string{"/finish", "/log?seq=0", "/object?digest=" + sumOf("hello") + "&size=5", "/progress", "/objects/missing"} {
		r := asked.send(gatewayRequest{m.url, http.MethodPost, a.path(path), "hello", a.bearer(), http.StatusRequestTimeout})
		if p := problemOf(t, r); p.Type != api.ProblemBase+api.TooSlow || !r.Close {
			t.Errorf("%s: %+v", path, p)
		}
	}
	m.waitUntil("it holds nothing", func() bool { return m.gateway.room.takenBytes() == 0 })
}

// An attempt whose plan is not of a controller of this install gets no order, so no command.
func TestAnUnsignedPlanIsNoOrder(t *testing.T) {
	m := newMill(t, nil)
	for name, mac := range map[string]string{"no MAC": "", "an invented MAC": strings.Repeat("a", 52)} {
		key := "bot-" + itoa(len(mac))
		event := json.RawMessage(`{"specversion":"1.0","id":"1","source":"/test","type":"new-data"}`)
		asked := must1(m.foreman.Request(t.Context(), scheduler.Request{Recipe: "fit", Key: key, Cause: tidemill.Cause{Source: "/test", ID: "1"},
			Events: []json.RawMessage{event}, Delay: time.Hour}))(t)
		data := must1(json.Marshal(tidemill.RunStarted{Attempt: 1, Causes: 1, MAC: mac, Plan: &tidemill.Plan{Dir: "/", Command: []string{"sh", "-c", "id"}, Attempts: 1}}))(t)
		v := broker.View{ID: key, Source: "/tidemill/tidemill/controller", Type: tidemill.TypeRunStarted, Subject: key, Time: time.Now().UTC().Format(time.RFC3339Nano),
			DataContentType: "application/json", Data: data,
			Extensions: []broker.Attribute{{Name: tidemill.AttrRecipe, Value: "fit"}, {Name: tidemill.AttrRun, Value: asked.Run}, {Name: tidemill.AttrAttempt, Value: "1"}}}
		_, _, err := m.ledger.Append(t.Context(), &v)
		m.must(err)
		run := m.runOf(asked.Run)
		a := &agentAttempt{m, tidemill.AttemptName(run.ID, 1), run.ID, m.tokens.Of(run.ID, *run.Attempt())}
		wantProblem(t, a.get(""), http.StatusConflict, api.Superseded, "run secret")
		if t.Failed() {
			t.Fatal(name)
		}
	}
}
