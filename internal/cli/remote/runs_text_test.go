package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// runsOfTest returns a run in each state.
func runsOfTest() []api.RunShown {
	run := func(id, key string, s tidemill.RunState, change func(*api.RunShown)) api.RunShown {
		r := api.RunShown{Run: tidemill.Run{ID: strings.Repeat(id, 26), Recipe: "intent", Key: key, State: s, Causes: 1, Asking: noon.Add(-time.Minute)}}
		if s != tidemill.RunWaiting {
			r.Attempts = []tidemill.Attempt{{Number: 1, Started: noon.Add(-30 * time.Second), Where: tidemill.Where{Node: "laptop"}}}
		}
		change(&r)
		return r
	}
	return []api.RunShown{
		run("a", "bot-1", tidemill.RunSucceeded, func(r *api.RunShown) {
			r.End, r.Result = noon.Add(-10*time.Second), &tidemill.Result{Metrics: map[string]float64{"z": 1, "accuracy": 0.91, "loss": 0.2}}
		}),
		run("b", "bot-2", tidemill.RunWaiting, func(r *api.RunShown) { r.Waits = "for a slot of pool gpu (8 of 8 in use)" }),
		run("c", "bot-3", tidemill.RunRunning, func(r *api.RunShown) {
			r.Progress = &api.Progress{Attempt: 1, Step: 12, Total: 100, Metrics: map[string]float64{"loss": 0.53214}}
		}),
		run("d", "bot-4\x1b[2J", tidemill.RunFailed, func(r *api.RunShown) {
			r.End, r.Reason = noon.Add(-20*time.Second), "the command ended with exit code 1"
		}),
		run("f", "bot-6", tidemill.RunRunning, func(r *api.RunShown) {
			r.Attempts[0].Pending = "it waits for 1 of this machine's 2 GPUs, of which 0 are free"
		}),
		run("e", "bot-5", tidemill.RunRetrying, func(r *api.RunShown) { r.Waits = "for its time (12:03:10 UTC)" }),
	}
}

func TestRunsAreTabulated(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := show.Columns(&b, runRows(runsOfTest(), noon)); err != nil {
		t.Fatal(err)
	}
	expect(t, "the table", b.String(), "RUN", "succeeded", "20s", "accuracy 0.91, loss 0.2\n", "waits for a slot of pool gpu (8 of 8 in use)",
		"[=               ]  12%  12/100  loss 0.5321", "30s", "exit code 1", "bot-6      pending ", "waits for its time", "bot-4·[2J")
}

// A run that tries again says why the attempt before has failed. A run that has ended does not.
func TestWhyARunTriesAgain(t *testing.T) {
	t.Parallel()
	resting, progressing, ended := runsOfTest()[5], runsOfTest()[2], runsOfTest()[0]
	for want, r := range map[string]*api.RunShown{"waits for its time (12:03:10 UTC); attempt 1: exit status 1: no luck": &resting,
		"[=               ]  12%  12/100  loss 0.5321; attempt 1: exit status 1: no luck": &progressing, "accuracy 0.91, loss 0.2": &ended} {
		r.Attempts = append([]tidemill.Attempt{{Number: 1, Ended: noon, Reason: "exit status 1: no luck"}}, r.Attempts...)
		r.Attempts[1].Number = 2
		if r.Progress != nil {
			r.Progress.Attempt = 2
		}
		if got := noteOf(r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The metrics of the gate come first, then those of quality.
func TestTheMetricsOfTheGateComeFirst(t *testing.T) {
	t.Parallel()
	r := runsOfTest()[0]
	r.Result.Metrics = map[string]float64{"accuracy": 0.9, "auc": 0.8, "brier": 0.1, "macroF1": 0.7, "recall": 0.6, "zebra": 1}
	for gate, want := range map[string]string{
		"":                                "accuracy 0.9, macroF1 0.7",
		"recall":                          "recall 0.6, accuracy 0.9",
		"zebra recall auc":                "zebra 1, recall 0.6, auc 0.8",
		"missing auc":                     "auc 0.8, accuracy 0.9",
		"zebra recall auc brier accuracy": "zebra 1, recall 0.6, auc 0.8, brier 0.1",
	} {
		r.GateMetrics = strings.Fields(gate)
		if got := noteOf(&r); got != want {
			t.Errorf("of the gate %q it is %q, not %q", gate, got, want)
		}
	}
}

func TestAWatchShowsWhatIsLiveFirst(t *testing.T) {
	t.Parallel()
	all := runsOfTest()
	sorted := byLiveliness(all[:4], []api.RunShown{all[5], all[2]})
	order := ""
	for i := range sorted {
		order += sorted[i].ID[:1]
	}
	if order != "ecbad" {
		t.Errorf("the order is %s", order)
	}
	frame := runFrame(sorted, noon, 60, 7)
	expect(t, "the frame", frame, "2 runs live, 1 waiting, 2 ended", "eeeeeeeeee", "bbbbbbbbbb", "… and 2 more\n")
	if strings.Contains(frame, "aaaaaaaaaa") || strings.Count(frame, "\n") > 7 {
		t.Errorf("it is higher than the screen:\n%s", frame)
	}
	for line := range strings.Lines(frame) {
		if len([]rune(line)) > 60 {
			t.Errorf("it is wider than the screen: %q", line)
		}
	}
}

// If the output is not a terminal, each change is a line.
func TestAWatchTellsEachChangeOnce(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	w := &runWatch{out: &b, told: map[string]string{}}
	all := runsOfTest()
	tell := func(want int) {
		t.Helper()
		b.Reset()
		if err := w.tell(all, noon); err != nil || strings.Count(b.String(), "\n") != want {
			t.Errorf("%v; it tells\n%s", err, &b)
		}
	}
	tell(6)
	tell(0)
	all[2].Progress.Step = 13
	tell(1)
	expect(t, "the line", b.String(), "12:00:00  cccccccccc  intent  bot-3  running", "13/100")
	all[1].State, all[1].Waits = tidemill.RunRunning, ""
	tell(1)
}

func TestARunIsShown(t *testing.T) {
	t.Parallel()
	whole := &api.RunWhole{RunShown: runsOfTest()[3],
		Plan: &tidemill.Plan{Dir: "/trainer", Command: []string{"python3", "train.py"}, Pool: "gpu", GPUs: 1, Deadline: time.Hour, Attempts: 3, Model: "intent/bot-4",
			Inputs: []tidemill.Input{{Name: "examples", Dataset: "bots/bot-4", Branch: "main", Commit: "cmt", Files: 3, Bytes: 2048}, {Name: "more", URI: "s3://b/x"}}},
		Events: []json.RawMessage{json.RawMessage(`{"specversion":"1.0","id":"e-1","source":"/crm","type":"bot-created","subject":"bot-4","data":{"a":1}}`)}}
	whole.Causes, whole.By, whole.Again = 3, "ada", "zzz"
	whole.Attempts = append(whole.Attempts, tidemill.Attempt{Number: 2, Started: noon.Add(-25 * time.Second), Ended: noon.Add(-20 * time.Second), Outcome: tidemill.OutcomeFailed,
		Reason: "exit code 1", Where: tidemill.Where{Node: "laptop", Card: "H200", GPUs: []int{0, 1}, ResumedFrom: "tree"}})
	whole.Result = &tidemill.Result{Exit: 1, PeakMemory: 5 << 20, GPUSeconds: 2.5, Stages: []tidemill.Stage{{Name: "fetch", Seconds: 0.0123}, {Name: "run", Seconds: 90.4}},
		Metrics: map[string]float64{"loss": 0.5}, LastLines: "Traceback\n\x1b[31mboom\n", LogBytes: 100, Cut: true}
	var b bytes.Buffer
	if err := showRun(&b, whole, "version 7 of intent/bot-4 (refused): it is worse", noon); err != nil {
		t.Fatal(err)
	}
	expect(t, "the run", b.String(), "dddddddd, failed", "intent for bot-4·[2J", "the command ended with exit code 1", "by ada, by 3 events", "a retry of run zzz",
		"python3 train.py in /trainer", "pool gpu, 1 GPU, 1h0m0s at most, 3 attempts", "examples: bots/bot-4 at main, commit cmt (3 files, 2.0 KiB)", "more: s3://b/x",
		"model intent/bot-4", "became", "version 7 of intent/bot-4 (refused): it is worse", "exit code 1, 5.0 MiB of memory at most, 2.5 GPU seconds", "100 B, the rest was not stored", "ATTEMPT", "running", "laptop, H200, GPU 0 1, from a checkpoint",
		"fetch 12ms, run 1m30s", "Traceback\n  ·[31mboom\n", "… 2 events before", "bot-created", "e-1", `{"a":1}`, "tidemill runs retry dddddddddd")
	if strings.Contains(b.String(), "\x1b") {
		t.Errorf("a terminal obeys\n%q", &b)
	}
}

// A run whose inputs are missing was not planned, and its command never began. A live run has not ended,
// although an attempt was lost.
func TestARunIsShownWithoutItsMissingParts(t *testing.T) {
	t.Parallel()
	whole := &api.RunWhole{RunShown: runsOfTest()[3], Plan: &tidemill.Plan{Pool: "default"}}
	whole.Result = &tidemill.Result{Exit: -1}
	var b bytes.Buffer
	if err := showRun(&b, whole, "", noon); err != nil {
		t.Fatal(err)
	}
	expect(t, "without inputs", b.String(), "Next: tidemill runs retry dddddddddd\n")
	for _, never := range []string{" in \n", "where", "\nended", "tidemill logs"} {
		if strings.Contains(b.String(), never) {
			t.Errorf("it has %q:\n%s", never, &b)
		}
	}
	b.Reset()
	whole.State, whole.End, whole.Reason, whole.Plan = tidemill.RunRunning, time.Time{}, "", &tidemill.Plan{Image: "trainer:1", Deadline: time.Hour}
	if err := showRun(&b, whole, "", noon); err != nil {
		t.Fatal(err)
	}
	expect(t, "a live run", b.String(), "runs       trainer:1\n", "tidemill logs dddddddddd -f")
	if strings.Contains(b.String(), "ended") {
		t.Errorf("it has ended:\n%s", &b)
	}
}

func TestWhatBecameOfManyIsSummedUp(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	sum := newRunSum(&call{Session: &command.Session{Stdout: &b}})
	for i := range 25 {
		d := api.RunDone{Run: strings.Repeat("a", 26), Recipe: "intent", Key: "bot", Done: "requested"}
		if i%5 == 0 {
			d = api.RunDone{Recipe: "intent", Key: "bot", Done: "because", Refused: true}
		}
		sum.add([]api.RunDone{d})
	}
	if err := sum.end(true); err != nil {
		t.Fatal(err)
	}
	expect(t, "the sum", b.String(), "-           intent  bot  because\n", "aaaaaaaaaa  intent  bot  requested\n", "… and 5 more\n", "25 runs: 5 skipped, 20 requested.\n", "without --dry-run")
	if strings.Count(b.String(), "\n") != listedRuns+3 || sum.failure() != nil {
		t.Errorf("%v\n%s", sum.failure(), &b)
	}
	b.Reset()
	whole := newRunSum(&call{Session: &command.Session{Stdout: &b}, json: true})
	whole.add([]api.RunDone{{Run: strings.Repeat("a", 26), Recipe: "intent", Done: "requested"}})
	var got api.RunsDone
	if err := whole.end(false); err != nil || json.Unmarshal(b.Bytes(), &got) != nil || len(got.Runs) != 1 || got.Runs[0].Run != strings.Repeat("a", 26) {
		t.Errorf("%v, as JSON:\n%s", err, &b)
	}
	none := newRunSum(&call{Session: &command.Session{Stdout: &b}})
	none.add([]api.RunDone{{Done: "because", Refused: true}})
	if !errors.Is(none.failure(), command.ErrReported) {
		t.Error("where nothing could be done, it is a success")
	}
}

// gatewayOf returns a client of a server with the handler's answers.
func gatewayOf(t *testing.T, answer http.HandlerFunc) *client.Gateway {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	g, err := client.Dial(t.Context(), client.Options{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

// If a later request of a command fails, the command prints the results of the earlier ones before the error.
func TestACommandThatFailsInTheMiddle(t *testing.T) {
	t.Parallel()
	replays := 0
	g := gatewayOf(t, func(w http.ResponseWriter, r *http.Request) {
		letters := strings.HasPrefix(r.URL.Path, "/api/v1/dead-letters")
		if letters {
			replays++
		}
		asked, _ := io.ReadAll(r.Body)
		if strings.Contains(string(asked), `"after":"x"`) || replays == 2 {
			w.Header().Set("Content-Type", api.ProblemType)
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"title":"no","detail":"your right has ended"}`)
			return
		}
		runs, models := api.RunsDone{Next: "x"}, api.PromotionsDone{Next: "x"}
		for range 2 * listedRuns {
			runs.Runs = append(runs.Runs, api.RunDone{Run: "abcdefghijklmnop", Recipe: "intent", Key: "k", Done: "cancelled"})
			models.Models = append(models.Models, api.PromotionDone{Model: "m", Done: "rolled back"})
		}
		var body any = runs
		if letters {
			body = api.LetterDone{Letters: []string{"a", "b"}, Left: 1}
		}
		if strings.HasPrefix(r.URL.Path, "/api/v1/models") {
			body = models
		}
		_ = json.NewEncoder(w).Encode(body)
	})
	for name, c := range map[string]struct {
		do   func(context.Context, *call) error
		json bool
		want string
	}{
		"start":          {do: (&runStart{}).do, want: "40 runs: 40 cancelled.\n"},
		"start, as JSON": {do: (&runStart{}).do, json: true, want: `"run": "abcdefghijklmnop"`},
		"cancel":         {do: (&runCancel{}).do, want: "40 runs: 40 cancelled.\n"},
		"rollback":       {do: (&rollback{}).do, want: "40 models: 40 rolled back, 0 skipped.\n"},
	} {
		var out strings.Builder
		err := c.do(t.Context(), &call{Session: &command.Session{Stdout: &out, Stderr: io.Discard}, g: g, json: c.json})
		if err == nil || !strings.Contains(err.Error(), "your right has ended") || !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: %v\n%s", name, err, &out)
		}
	}
	err := (&letterReplay{noWait: true}).do(t.Context(), &call{Session: &command.Session{Stdout: io.Discard, Stderr: io.Discard}, g: g})
	if err == nil || !strings.Contains(err.Error(), "your right has ended; the replay of 2 dead letters has begun already") {
		t.Errorf("replay: %v", err)
	}
}

// A replay may take several requests. Those that the last request refuses are still open, and those that it left too.
func TestAReplayOfSeveralRequests(t *testing.T) {
	t.Parallel()
	answers := []api.LetterDone{{Matched: 4, Letters: []string{"a"}, Left: 3}, {Letters: []string{}, Left: 1, Refused: []api.RefusedGroup{{Reason: "no model", Count: 2}}}}
	g := gatewayOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			_ = json.NewEncoder(w).Encode(answers[0])
			answers = answers[1:]
		}
	})
	var out, stderr strings.Builder
	if err := (&letterReplay{noWait: true}).do(t.Context(), &call{Session: &command.Session{Stdout: &out, Stderr: &stderr}, g: g}); err != nil {
		t.Error(err)
	}
	expect(t, "the sum", out.String(), "Replaying 1 dead letter.")
	expect(t, "the rest", stderr.String(), "Skipped 2 dead letters: no model\n", "1 dead letter not tried: give the same command again.")
}

func TestKeysOfAStart(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{`a,b`: {"a", "b"}, `a\,b,c`: {"a,b", "c"}, `a\\,b`: {`a\,b`}, `a\b`: {`a\b`}} {
		p := runStart{}
		if err := p.takeKeys(text); err != nil || !slices.Equal(p.keys, want) {
			t.Errorf("%s: %q, %v", text, p.keys, err)
		}
	}
	if err := (&runStart{}).takeKeys("a,,b"); err == nil {
		t.Error("an empty key was taken")
	}
}
