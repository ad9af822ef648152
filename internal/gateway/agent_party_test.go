package gateway

import (
	"net/http"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
)

func TestParts(t *testing.T) {
	plan := &tidemill.Plan{Workers: 3, Servers: &tidemill.Servers{Count: 2}}
	for name, want := range map[string]bool{"w1": true, "w2": true, "ps0": true, "ps1": true,
		"w0": false, "w3": false, "ps2": false, "w": false, "": false, "w01": false, "w-1": false, "ps": false, "x1": false, "w1/../../x": false} {
		if hasPart(plan, name) != want {
			t.Errorf("%q: %t", name, !want)
		}
		if ok := isPart(name); ok != (want || name == "w0" || name == "w3" || name == "ps2") {
			t.Errorf("%q is a part: %t", name, ok)
		}
	}
	if hasPart(&tidemill.Plan{}, "w1") || hasPart(&tidemill.Plan{}, "ps0") {
		t.Error("one that is alone has others")
	}
}

// A worker that is not in the plan is refused.
func TestStrangersAmongTheWorkers(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	for _, path := range []string{"/beat?part=worker&index=1", "/beat?part=server", "/beat?part=chief", "/beat?part=worker&index=x", "/beat?who=me",
		"/log?seq=0&part=w1", "/log?seq=0&part=w0", "/log?seq=0&part=.."} {
		wantProblem(t, a.post(path, outLine+"x\n"), http.StatusBadRequest, api.InvalidRequest, "")
	}
}

// The workers of an attempt learn of each other through their beats, and each worker has a log.
// The first worker's beats count for the attempt, and each of the others has its beats, too.
func TestSeveralAtTheDoor(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("pair", "bot-1")
	beats := func(query, want string) {
		t.Helper()
		if r := a.post("/beat?"+query, ""); r.StatusCode != http.StatusOK || r.body != want+"\n" && r.body != want {
			t.Errorf("%s: %d %s; want %s", query, r.StatusCode, r.body, want)
		}
	}
	beats("part=worker&index=1&ready=true", `{}`)
	beats("part=server&index=0&ready=true", `{}`)
	heard := must1(m.ledger.Beats(t.Context()))(t)
	if name := tidemill.AttemptName(a.run, 1); len(heard) != 2 || heard[name+"/w1"].IsZero() || heard[name+"/ps0"].IsZero() {
		t.Errorf("it was heard of: %v", heard)
	}
	beats("part=worker&index=0", `{}`)
	if heard = must1(m.ledger.Beats(t.Context()))(t); len(heard) != 3 || heard[tidemill.AttemptName(a.run, 1)].IsZero() {
		t.Errorf("it was heard of: %v", heard)
	}
	m.must(m.redis.Del(t.Context(), must1(m.redis.Keys(t.Context(), "*muster*").Result())(t)...).Err())
	beats("part=worker&index=0&ready=true", `{}`)
	beats("part=server&index=0&ready=true", `{}`)
	beats("part=worker&index=1&ready=true", `{"all":true}`)
	if r := a.post("/log?seq=0&part=w1", outLine+"hello\n"); r.StatusCode != http.StatusNoContent {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	beats("part=worker&index=0&ready=true&over=true", `{"all":true,"end":true}`)
	beats("part=server&index=0&over=true", `{"all":true,"end":true}`)
	beats("part=worker&index=1&over=true", `{"all":true,"end":true,"alone":true}`)
	if heard = must1(m.ledger.Beats(t.Context()))(t); len(heard) != 1 || heard[tidemill.AttemptName(a.run, 1)].IsZero() {
		t.Errorf("the others are over, and it was heard of: %v", heard) // their silence is no sign that their nodes are lost
	}
	if r := m.do(http.MethodGet, "/api/v1/runs/"+a.run+"/log", ""); r.body != "[w1] hello\n" {
		t.Errorf("the log is %q", r.body)
	}
}

// The other workers have logs of their own besides the first worker's. These logs are shown after
// the first worker's log with the workers' names, or alone.
func TestLogsOfSeveral(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	if r := a.post("/log?seq=0", outLine+"first\n"); r.StatusCode != http.StatusNoContent {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	for _, part := range []string{"ps0", "w10", "w1"} {
		for seq, text := range []string{"one", "two"} {
			m.must(m.store.PutPartLog(t.Context(), a.run, 1, part, seq, []byte(outLine+text+" of "+part+"\n")))
		}
	}
	others := "[w1] one of w1\n[w1] two of w1\n[w10] one of w10\n[w10] two of w10\n[ps0] one of ps0\n[ps0] two of ps0\n"
	for query, want := range map[string]string{
		"":          "first\n" + others,
		"?part=w0":  "first\n",
		"?part=ps0": "[ps0] one of ps0\n[ps0] two of ps0\n",
		"?part=w7":  "",
		"?skip=6":   others,
		"?skip=10":  others[4:],
	} {
		if r := m.do(http.MethodGet, "/api/v1/runs/"+a.run+"/log"+query, ""); r.StatusCode != http.StatusOK || r.body != want {
			t.Errorf("%s: %d %q", query, r.StatusCode, r.body)
		}
	}
	wantProblem(t, m.do(http.MethodGet, "/api/v1/runs/"+a.run+"/log?part=../x", ""), http.StatusBadRequest, api.InvalidRequest, "")
}

// The bound of a log holds for the log of each worker and server.
func TestTheLogOfAnotherWorkerIsBounded(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("pair", "bot-1")
	chunk := strings.Repeat("x", api.MaxLogChunk-1) + "\n" // one of the two chunks that the plan and the slack allow
	for _, part := range []string{"", "&part=w1", "&part=ps0"} {
		for seq, want := range []int{http.StatusNoContent, http.StatusNoContent, http.StatusRequestEntityTooLarge} {
			if r := a.post("/log?seq="+itoa(seq)+part, chunk); r.StatusCode != want {
				t.Errorf("chunk %d%s: %d %s; want %d", seq, part, r.StatusCode, r.body, want)
			}
		}
	}
}
