package gateway

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/store"
)

// An attempt that was reported as lost may still run. All its requests are refused, and no request
// has an effect.
func TestAZombieIsRefused(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	dead := m.beginRun("fit", "bot-1")
	file := dead.putObject("model.onnx", "of the dead")
	if r := dead.post("/log?seq=0", outLine+"alive\n"); r.StatusCode != http.StatusNoContent {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	m.loseAttempt(dead.run, 1)
	alive := m.waitForAttempt(dead.run, 2)
	m.waitForForgotten(dead)
	words := func() (all []gatewayRequest) {
		for path, body := range map[string]string{"": "", "/events": "", "/files?tree=" + sumOf("x"): "", "/object?digest=" + file.Digest: "",
			"POST /beat": "", "POST /progress": `{"step":666}`,
			"POST /checkpoint": `{"files":[]}`, "POST /finish": finishOf(t, tidemill.OutcomeSucceeded, false, file),
			"POST /objects/missing": `{}`, "POST /object?digest=" + sumOf("x") + "&size=1": "x"} {
			method := http.MethodGet
			if rest, is := strings.CutPrefix(path, "POST "); is {
				method, path = http.MethodPost, rest
			}
			all = append(all, gatewayRequest{method: method, path: path, body: body})
		}
		return all
	}
	for _, q := range words() {
		wantProblem(t, dead.send(q.method, q.path, q.body), http.StatusConflict, api.Superseded, "attempt 2 is running")
	}
	m.checkUntouched(dead)

	var done api.Finished
	alive.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeSucceeded, Files: []api.File{alive.putObject("model.onnx", "of the living")}}, &done)
	for _, q := range words() {
		wantProblem(t, dead.send(q.method, q.path, q.body), http.StatusConflict, api.Superseded, "its run is succeeded")
		if q.path != "/finish" {
			m.waitForForgotten(alive)
			wantProblem(t, alive.send(q.method, q.path, q.body), http.StatusConflict, api.Superseded, "it has ended")
		}
	}
	m.checkUntouched(dead)
	if run := m.runOf(dead.run); run.State != tidemill.RunSucceeded || run.Result.Artifact == "" || run.Result.Bytes != int64(len("of the living")) {
		t.Errorf("%+v", run.Result)
	}
}

// waitForForgotten waits until the gateway no longer uses the ledger's previous answer about an
// attempt.
func (m *trainingWorld) waitForForgotten(a *agentAttempt) {
	m.Helper()
	m.waitUntil("the attempt is asked after again", func() bool { return m.gateway.attempts.recentRun(a.name, time.Now()) == nil })
}

// checkUntouched checks that the requests of a superseded attempt had no effect.
func (m *trainingWorld) checkUntouched(a *agentAttempt) {
	m.Helper()
	if text := m.do(http.MethodGet, "/api/v1/runs/"+a.run+"/log?attempt=1", "").body; text != "alive\n" {
		m.Errorf("the log is %q", text)
	}
	if _, err := m.store.Checkpoint(m.Context(), a.run); !errors.Is(err, store.ErrNotFound) {
		m.Errorf("a checkpoint: %v", err)
	}
	for _, v := range m.storedEvents(tidemill.StreamProgress) {
		m.Errorf("it made progress: %s", v.Data)
	}
	told, err := m.ledger.Told(m.Context(), []string{a.run})
	if err != nil || len(told) != 0 {
		m.Errorf("it is told %s %v", told, err)
	}
	if o := m.runOf(a.run).Attempts[0].Outcome; o != tidemill.OutcomeLost {
		m.Errorf("attempt 1 is %s", o)
	}
}

// A request that stores something is refused at once, even if the cache of attempts has an older
// answer.
func TestAZombieIsRefusedAtOnceWhereItMatters(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	if r := a.post("/objects/missing", "{}"); r.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	m.loseAttempt(a.run, 1)
	for path, body := range map[string]string{"/checkpoint": `{"files":[]}`, "/finish": finishOf(t, tidemill.OutcomeFailed, false), "/beat": ""} {
		wantProblem(t, a.post(path, body), http.StatusConflict, api.Superseded, "")
	}
	wantProblem(t, a.post("/objects/missing", "{}"), http.StatusConflict, api.Superseded, "") // forgotten since the first refusal
}

// For some seconds after the end of an attempt, its agents may still send the rest of their logs.
func TestTheLogOfAnEndedAttempt(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	m.loseAttempt(a.run, 1)
	if r := a.post("/log?seq=0", outLine+"last words\n"); r.StatusCode != http.StatusNoContent {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	if text := m.do(http.MethodGet, "/api/v1/runs/"+a.run+"/log?attempt=1", "").body; text != "last words\n" {
		t.Errorf("the log is %q", text)
	}
	run, now := m.runOf(a.run), time.Now()
	run.Attempts[0].Ended = now.Add(time.Second - api.LateLog)
	if !hasJustEnded(run, 1, now) || hasJustEnded(run, 1, now.Add(2*time.Second)) || hasJustEnded(run, 2, now) || hasJustEnded(run, 3, now) {
		t.Errorf("%s after the end", api.LateLog)
	}
}

// If a run ends while its agent's checkpoint is being made, no checkpoint is set.
func TestACheckpointAsksTheLedgerTwice(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	run := m.runOf(a.run)
	m.loseAttempt(a.run, 1)
	r := &request{attempt: bearer{name: a.name, number: 1, run: run}} // the attempt as it was admitted
	if p := m.gateway.stillUnderWay(t.Context(), r); p == nil || p.Type != api.ProblemBase+api.Superseded {
		t.Errorf("%+v", p)
	}
}

func TestWhyAnAttemptIsNotUnderWay(t *testing.T) {
	t.Parallel()
	ended := tidemill.Attempt{Number: 1, Ended: time.Now(), Outcome: tidemill.OutcomeLost, Reason: "no word"}
	for want, run := range map[string]tidemill.Run{
		"it has ended, lost: no word, and attempt 2 is running": {State: tidemill.RunRunning, Attempts: []tidemill.Attempt{ended, {Number: 2}}},
		"it has ended, lost: no word, and its run is retrying":  {State: tidemill.RunRetrying, Attempts: []tidemill.Attempt{ended}},
		"it has not begun, and its run is waiting":              {State: tidemill.RunWaiting},
	} {
		if got := whyNotUnderWay(&run, 1); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The size of the cache of attempts depends on the present attempts, not on all past ones.
func TestTheMemoryOfAttempts(t *testing.T) {
	t.Parallel()
	var s attemptCache
	now := time.Now()
	run := &tidemill.Run{ID: "run"}
	for i := range 10 * leastAttempt {
		s.remember(itoa(i), run, now.Add(time.Duration(i)*time.Second))
	}
	if n := len(s.of); n > leastAttempt+int(attemptKept/time.Second)+1 {
		t.Errorf("%d are kept", n)
	}
	s.remember("a", run, now)
	if s.recentRun("a", now.Add(latelyFor)) != run || s.recentRun("a", now.Add(latelyFor+1)) != nil || s.recentRun("none", now) != nil {
		t.Error("what the ledger said is good for another while")
	}
	if s.forget("a"); s.recentRun("a", now) != nil {
		t.Error("it is not forgotten")
	}
	s.remember("b", run, now)
	var taken []bool
	for _, at := range []time.Duration{0, 0, time.Second, time.Second, time.Hour, time.Hour} {
		taken = append(taken, s.countProgress("b", api.MaxSteps-1, now.Add(at)))
	}
	if !slices.Equal(taken, []bool{true, false, false, false, true, false}) || !s.countProgress("none", 1000, now) {
		t.Errorf("steps are taken %v", taken)
	}
}
