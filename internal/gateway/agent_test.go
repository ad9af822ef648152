package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
)

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func itoa(n int) string { return strconv.Itoa(n) }

// TestAnAttempt follows an attempt from its order to its end, by the requests of its agent.
func TestAnAttempt(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")

	var order api.Order
	m.must(json.Unmarshal([]byte(a.get("").body), &order))
	if order.Run != a.run || order.Recipe != "fit" || order.Key != "bot-1" || order.Attempt != 1 || order.Checkpoint != nil || order.Champion != nil ||
		order.BeatSeconds != 2 || order.Causes != 1 || fmt.Sprint(order.Plan.Command) != "[fit]" || !strings.Contains(string(order.Event), `"id":"1"`) {
		t.Errorf("%+v", order)
	}
	if r := a.get("/events"); r.StatusCode != http.StatusOK || len(linesOf(r.body)) != 1 || !strings.Contains(r.body, `"subject":"bot-1"`) {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	var beat api.Beat
	if a.postJSON("/beat", nil, &beat); beat.Cancel != "" {
		t.Errorf("%+v", beat)
	}
	for seq, text := range []string{"hello", "world"} {
		if r := a.post("/log?seq="+itoa(seq), outLine+text+"\n"); r.StatusCode != http.StatusNoContent {
			t.Errorf("%d %s", r.StatusCode, r.body)
		}
	}
	file := a.putObject("model.onnx", "a model")
	var done api.Finished
	a.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeSucceeded, Result: tidemill.Result{Artifact: "forged", Metrics: map[string]float64{"accuracy": 0.9}},
		Where: tidemill.Where{Node: "here"}, Files: []api.File{file}}, &done)
	if done.State != tidemill.RunSucceeded {
		t.Errorf("%+v", done)
	}
	run := m.runOf(a.run)
	if r := run.Result; run.State != tidemill.RunSucceeded || r.Metrics["accuracy"] != 0.9 || r.Files != 1 || r.Bytes != 7 || run.Attempts[0].Node != "here" {
		t.Errorf("%+v %+v", run, run.Result)
	}
	if f := must1(m.store.File(t.Context(), run.Result.Artifact, "model.onnx"))(t); f.Digest != file.Digest {
		t.Errorf("%+v", f)
	}
	if text := m.do(http.MethodGet, "/api/v1/runs/"+a.run+"/log", "").body; text != "hello\nworld\n" {
		t.Errorf("the log is %q", text)
	}
}

// If the answer was lost, the repeated request gets the same answer.
func TestAFinishSaidTwiceIsSaidOnce(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	for range 3 {
		var done api.Finished
		if a.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeFailed, Permanent: true, Reason: "it will never do"}, &done); done.State != tidemill.RunFailed {
			t.Errorf("%+v", done)
		}
	}
	if n := len(factsOf(m, tidemill.TypeRunFinished)); n != 1 {
		t.Errorf("%d facts tell of the end", n)
	}
	wantProblem(t, a.post("/beat", ""), http.StatusConflict, api.Superseded, "it will never do")
}

func factsOf(m *trainingWorld, typ string) (ids []string) {
	for _, v := range m.storedEvents(tidemill.StreamFacts) {
		if v.Type == typ {
			ids = append(ids, v.ID)
		}
	}
	return ids
}

// A success that made nothing for its dataset is a failure, and its agent gets the same
// answer as for its own report.
func TestASuccessWithoutADatasetFails(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("clean", "bot-1")
	for range 2 {
		var done api.Finished
		if a.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeSucceeded}, &done); done.State != tidemill.RunFailed {
			t.Errorf("%+v", done)
		}
	}
	b := m.waitForAttempt(m.requestRun("clean", "bot-2", "2"), 1)
	var done api.Finished
	if b.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeSucceeded, Files: []api.File{b.putObject("a/b.csv", "1,2")}}, &done); done.State != tidemill.RunSucceeded {
		t.Errorf("%+v", done)
	}
	if c := must1(m.store.Head(t.Context(), "clean/bot-2", "main"))(t); c.ID != m.runOf(b.run).Commit || c.Files != 1 {
		t.Errorf("%+v", c)
	}
}

// A run that was requested by many events gets all of them in order, although facts of other
// runs are in between.
func TestTheEventsOfARun(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	first := m.beginRun("fit", "bot-1") // under way, so that the other requests wait
	var run string
	for i := 2; i < 42; i++ {
		run = m.requestRun("fit", "bot-1", itoa(i))
		m.requestRun("clean", "bot-1", itoa(i)) // sometimes on the same partition
		m.requestRun("fit", "bot-2", itoa(i))
	}
	var done api.Finished
	first.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeSucceeded}, &done)
	a := m.waitForAttempt(run, 1)
	lines := linesOf(a.get("/events").body)
	if len(lines) != 40 {
		t.Fatalf("%d events", len(lines))
	}
	for i, line := range lines {
		if !strings.Contains(line, `"id":"`+itoa(i+2)+`"`) || !strings.Contains(line, `"subject":"bot-1"`) {
			t.Errorf("event %d is %s", i, line)
		}
	}
}

func TestCancelIsToldAtTheNextBeat(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	must1(m.foreman.Cancel(t.Context(), m.runOf(a.run), "ana", "too dear"))(t)
	var beat api.Beat
	if a.postJSON("/beat", nil, &beat); beat.Cancel != "too dear" {
		t.Errorf("%+v", beat)
	}
	var done api.Finished
	if a.postJSON("/finish", api.Finish{Outcome: tidemill.OutcomeCancelled, Reason: "too dear"}, &done); done.State != tidemill.RunCancelled {
		t.Errorf("%+v", done)
	}
	for _, c := range []struct {
		cancel *tidemill.Cancel
		want   string
	}{{nil, ""}, {&tidemill.Cancel{}, "cancelled"}, {&tidemill.Cancel{By: "ana"}, "cancelled by ana"}, {&tidemill.Cancel{By: "ana", Reason: "x"}, "x"}} {
		if got := whyCancelled(&tidemill.Run{Cancel: c.cancel}); got != c.want {
			t.Errorf("%+v: %q", c.cancel, got)
		}
	}
}

// The second attempt resumes from the checkpoint of the first.
func TestACheckpointIsGoneOnFrom(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	var tree api.TreeRef
	a.postJSON("/checkpoint", api.CheckpointTaken{Files: []api.File{a.putObject("epoch", "1"), a.putObject("weights/w", "123")}}, &tree)
	if tree.Files != 2 || tree.Bytes != 4 {
		t.Errorf("%+v", tree)
	}
	m.loseAttempt(a.run, 1)
	b := m.waitForAttempt(a.run, 2)
	var order api.Order
	m.must(json.Unmarshal([]byte(b.get("").body), &order))
	if order.Attempt != 2 || order.Checkpoint == nil || *order.Checkpoint != tree {
		t.Errorf("%+v", order.Checkpoint)
	}
	var paths []string
	for _, line := range linesOf(b.get("/files?tree=" + tree.Tree).body) {
		var f api.File
		m.must(json.Unmarshal([]byte(line), &f))
		paths = append(paths, f.Path)
		if got := b.get("/object?digest=" + f.Digest).body; len(got) != int(f.Size) {
			t.Errorf("%s is %q", f.Path, got)
		}
	}
	if fmt.Sprint(paths) != "[epoch weights/w]" {
		t.Errorf("%v", paths)
	}
	wantProblem(t, b.get("/files?tree="+sumOf("no tree")), http.StatusNotFound, api.UnknownData, "")
}

// A power cut can empty files of the store. An attempt then starts without its checkpoint and its champion. It fails if
// an input is corrupt: if it only tried again, it would hold its GPUs until its deadline.
func TestFilesOfTheStoreAreCorrupt(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	corrupt := sumOf("a tree")
	for _, key := range []string{"runs/" + a.run + "/checkpoints/0001", "trees/" + corrupt[:2] + "/" + corrupt} {
		file := filepath.Join(m.files, filepath.FromSlash(key))
		m.must(os.MkdirAll(filepath.Dir(file), 0o700))
		m.must(os.WriteFile(file, nil, 0o600))
	}
	m.loseAttempt(a.run, 1)
	b := m.waitForAttempt(a.run, 2)
	var order api.Order
	if r := b.get(""); r.StatusCode != http.StatusOK {
		t.Errorf("the order: %d %s", r.StatusCode, r.body)
	} else if m.must(json.Unmarshal([]byte(r.body), &order)); order.Checkpoint != nil {
		t.Errorf("the checkpoint: %+v", order.Checkpoint)
	}
	if c, p := m.gateway.championFor(t.Context(), a.run, &tidemill.Champion{Version: 1, Artifact: corrupt}); c != nil || p != nil {
		t.Errorf("the champion: %+v, %+v", c, p)
	}
	wantProblem(t, b.get("/files?tree="+corrupt), http.StatusNotFound, api.UnknownData, "corrupt")
}

// If the facts with the events are gone, the answer is the ledger's newest event.
func TestTheEventsOfARunWhoseFactsAreGone(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	run := *m.runOf(a.run)
	run.Asked = []int64{run.Attempts[0].Offset} // offset of another fact
	w := httptest.NewRecorder()
	r := &request{Request: httptest.NewRequest(http.MethodGet, "/", nil), attempt: bearer{name: a.name, number: 1, run: &run}}
	if p := m.gateway.agentEvents(w, r); p != nil || w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"id":"1"`) || len(linesOf(w.Body.String())) != 1 {
		t.Errorf("%+v, %d %s", p, w.Code, w.Body)
	}
}
