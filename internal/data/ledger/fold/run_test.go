package fold_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

var update = flag.Bool("update", false, "write the golden files of testdata")

// factLine is a fact in the corpus. Its offset is the number of its line.
type factLine struct {
	Type, Recipe, Key, Run, By string
	At                         time.Time
	Data                       json.RawMessage
}

// foldResult is the result of folding a stream: a verdict for each line, the runs that ended, and
// the final making.
type foldResult struct {
	Verdicts []string
	Ended    []*tidemill.Run
	Making   *fold.Making
}

// Each testdata/runs/NAME.ndjson has the facts of a recipe and key. It folds to NAME.json for
// ever, because every version reads the same log. To add a case, add the facts, run with
// -update, and check the new file.
func TestFactsFoldForEver(t *testing.T) {
	streams, err := filepath.Glob("testdata/runs/*.ndjson")
	if err != nil || len(streams) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, stream := range streams {
		t.Run(filepath.Base(stream), func(t *testing.T) {
			got, err := json.MarshalIndent(tell(readFacts(t, stream)), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(stream, ".ndjson") + ".json"
			if *update {
				if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if string(got)+"\n" != string(want) {
				t.Errorf("folds to\n%s\nnot to\n%s", got, want)
			}
		})
	}
}

func readFacts(t *testing.T, stream string) (all []fold.Fact) {
	t.Helper()
	f, err := os.Open(stream)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var l factLine
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			t.Fatalf("%s: %v", s.Text(), err)
		}
		all = append(all, fold.Fact{Partition: 7, Offset: int64(len(all)), Type: l.Type, Recipe: l.Recipe, Key: l.Key, Run: l.Run, By: l.By, At: l.At, Data: l.Data})
	}
	return all
}

func tell(facts []fold.Fact) foldResult {
	out := foldResult{Making: &fold.Making{}}
	for _, f := range facts {
		v := out.Making.Apply(f)
		said := string(v.Result)
		if v.Reason != "" {
			said += ": " + v.Reason
		}
		if len(v.Forgotten) > 0 {
			said += "; forgets " + strings.Join(v.Forgotten, ", ")
		}
		out.Verdicts = append(out.Verdicts, said)
		if v.Ended != nil {
			out.Ended = append(out.Ended, v.Ended)
		}
	}
	return out
}

// scene folds facts, with short methods to write them.
type scene struct {
	*testing.T
	m      fold.Making
	offset int64
	now    time.Time
	ended  *tidemill.Run
}

func newScene(t *testing.T) *scene {
	return &scene{T: t, now: time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)}
}

// fold folds the next fact in, one second after the last.
func (s *scene) fold(typ, run string, data any) fold.Verdict {
	s.Helper()
	text, err := json.Marshal(data)
	if err != nil {
		s.Fatal(err)
	}
	s.now = s.now.Add(time.Second)
	v := s.m.Apply(fold.Fact{Offset: s.offset, Type: typ, Recipe: "r", Key: "k", Run: run, At: s.now, By: "ada", Data: text})
	s.offset++
	if v.Ended != nil {
		s.ended = v.Ended
	}
	return v
}

func (s *scene) is(v fold.Verdict, want fold.VerdictResult) {
	s.Helper()
	if v.Result != want || (v.Reason != "") != (want == fold.Refused) {
		s.Fatalf("it is %s (%s), want %s", v.Result, v.Reason, want)
	}
}

func causeOf(id string) tidemill.Cause { return tidemill.Cause{Source: "/shop", ID: id} }

func (s *scene) ask(cause string, d tidemill.RunRequested) fold.Verdict {
	s.Helper()
	d.Cause, d.Events, d.Config = causeOf(cause), []json.RawMessage{json.RawMessage(`{"id":"` + cause + `"}`)}, "c"
	return s.fold(tidemill.TypeRunRequested, "run-"+cause, d)
}

func (s *scene) start(run string, attempt int, p tidemill.Plan) fold.Verdict {
	s.Helper()
	d := tidemill.RunStarted{Attempt: attempt, Seen: s.offset - 1, Plan: &p}
	if s.m.Waiting != nil {
		d.Seen = s.m.Waiting.LastAsked()
	}
	return s.fold(tidemill.TypeRunStarted, run, d)
}

func (s *scene) finish(run string, attempt int, o tidemill.Outcome) fold.Verdict {
	s.Helper()
	return s.fold(tidemill.TypeRunFinished, run, tidemill.RunFinished{Attempt: attempt, Outcome: o, Reason: "why"})
}

var patient = tidemill.Plan{Attempts: 3, Backoff: tidemill.Backoff{First: 10 * time.Second, Cap: 35 * time.Second}} // read only

// A run waits for a time without new causes, but not for ever.
func TestWhenARunIsDue(t *testing.T) {
	t.Parallel()
	const s = time.Second
	type ask struct {
		at                time.Duration
		debounce, maxWait time.Duration
		delay             time.Duration
		due               time.Duration // time at which the run is due after it
	}
	for name, asks := range map[string][]ask{
		"at once":                               {{at: 5 * s, due: 5 * s}},
		"at once, twice":                        {{at: 5 * s, due: 5 * s}, {at: 6 * s, due: 5 * s}},
		"quiet":                                 {{at: 0, debounce: 30 * s, maxWait: 300 * s, due: 30 * s}},
		"put off by another":                    {{at: 0, debounce: 30 * s, maxWait: 300 * s, due: 30 * s}, {at: 20 * s, debounce: 30 * s, maxWait: 300 * s, due: 50 * s}},
		"a drip":                                {{at: 0, debounce: 30 * s, maxWait: 60 * s, due: 30 * s}, {at: 20 * s, debounce: 30 * s, maxWait: 60 * s, due: 50 * s}, {at: 40 * s, debounce: 30 * s, maxWait: 60 * s, due: 60 * s}, {at: 59 * s, debounce: 30 * s, maxWait: 60 * s, due: 60 * s}},
		"wanted at once after all":              {{at: 0, debounce: 30 * s, maxWait: 300 * s, due: 30 * s}, {at: 5 * s, due: 5 * s}, {at: 6 * s, debounce: 30 * s, maxWait: 300 * s, due: 5 * s}},
		"the most patient does not win":         {{at: 0, debounce: 10 * s, maxWait: 20 * s, due: 10 * s}, {at: 5 * s, debounce: 100 * s, maxWait: 1000 * s, due: 20 * s}},
		"a place in a spread":                   {{at: 0, delay: 100 * s, due: 100 * s}},
		"data comes before the spread's place":  {{at: 0, delay: 100 * s, due: 100 * s}, {at: 10 * s, debounce: 30 * s, maxWait: 300 * s, due: 40 * s}},
		"a spread puts nothing off":             {{at: 0, debounce: 30 * s, maxWait: 300 * s, due: 30 * s}, {at: 10 * s, delay: 3600 * s, due: 30 * s}},
		"nor does one spread the other's place": {{at: 0, delay: 100 * s, due: 100 * s}, {at: 90 * s, delay: 100 * s, due: 100 * s}},
		"an earlier place is taken":             {{at: 0, delay: 100 * s, due: 100 * s}, {at: 10 * s, delay: 20 * s, due: 30 * s}},
		"no maxWait is debounce":                {{at: 0, debounce: 30 * s, due: 30 * s}, {at: 20 * s, debounce: 30 * s, due: 30 * s}},
	} {
		var m fold.Making
		zero := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
		for i, a := range asks {
			data, err := json.Marshal(tidemill.RunRequested{Cause: causeOf(string(rune('a' + i))), Debounce: a.debounce, MaxWait: a.maxWait, Delay: a.delay})
			if err != nil {
				t.Fatal(err)
			}
			m.Apply(fold.Fact{Offset: int64(i), Type: tidemill.TypeRunRequested, Run: string(rune('a' + i)), At: zero.Add(a.at), Data: data})
			if run, due := m.DueRun(); run != m.Waiting || due.Sub(zero) != a.due {
				t.Errorf("%s: after %d it is due at %s, want %s", name, i, due.Sub(zero), a.due)
			}
		}
	}
}

// Failures of the command are limited by the plan. Losses are not the command's fault, and
// are limited separately. After its first loss a run waits as if it had only been requested.
func TestFailuresAndLosses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"fff":          "10s 20s failed",
		"ffs":          "10s 20s succeeded",
		"lffls":        "asked 10s 20s 10s succeeded",
		"llllll":       "asked 10s 20s 35s 35s 35s",
		"llllllllll":   "asked 10s 20s 35s 35s 35s 35s 35s 35s failed",
		"lllllllllf":   "asked 10s 20s 35s 35s 35s 35s 35s 35s 10s",
		"fllllllllllx": "10s asked 10s 20s 35s 35s 35s 35s 35s 35s failed",
		"llllllllkl":   "asked 10s 20s 35s 35s 35s 35s 35s asked asked",
		"kllllllllll":  "asked asked 10s 20s 35s 35s 35s 35s 35s 35s failed",
		"eeeeeeeeeeee": "asked asked asked asked asked asked asked asked asked asked asked asked",
		"c":            "cancelled",
		"fc":           "10s cancelled",
		"p":            "failed",
	} {
		s := newScene(t)
		s.is(s.ask("e", tidemill.RunRequested{}), fold.Accepted)
		var got []string
		for i, c := range text {
			if c == 'x' {
				s.is(s.start("run-e", i+1, patient), fold.Refused)
				break
			}
			s.is(s.start("run-e", i+1, patient), fold.Accepted)
			outcome := map[rune]tidemill.Outcome{'f': "failed", 'l': "lost", 'k': "lost", 'e': "left", 's': "succeeded", 'c': "cancelled", 'p': "failed"}[c]
			s.is(s.fold(tidemill.TypeRunFinished, "run-e", tidemill.RunFinished{Attempt: i + 1, Outcome: outcome, Permanent: c == 'p', Saved: c == 'k'}), fold.Accepted)
			if s.ended != nil {
				got = append(got, string(s.ended.State))
				continue
			}
			run, due := s.m.DueRun()
			if due.Equal(run.Asking) { // no newer run is before it
				got = append(got, "asked")
				continue
			}
			got = append(got, due.Sub(s.now).String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s, want %s", text, strings.Join(got, " "), want)
		}
	}
}

// A run can be cancelled until it has succeeded.
func TestCancelAtEachState(t *testing.T) {
	t.Parallel()
	dataset := patient
	dataset.Dataset = "d"
	cancel := func(s *scene) fold.Verdict {
		return s.fold(tidemill.TypeRunCancelled, "run-e", tidemill.RunCancelledData{Reason: "a slip"})
	}
	for name, c := range map[string]struct {
		before func(*scene)
		want   fold.VerdictResult
		state  tidemill.RunState // state of the run that ended; empty if it continues
	}{
		"unknown":    {func(s *scene) { s.m = fold.Making{} }, fold.Refused, ""},
		"waiting":    {func(*scene) {}, fold.Accepted, tidemill.RunCancelled},
		"running":    {func(s *scene) { s.start("run-e", 1, patient) }, fold.Accepted, ""},
		"retrying":   {func(s *scene) { s.start("run-e", 1, patient); s.finish("run-e", 1, tidemill.OutcomeFailed) }, fold.Accepted, tidemill.RunCancelled},
		"committing": {func(s *scene) { s.start("run-e", 1, dataset); s.finish("run-e", 1, tidemill.OutcomeSucceeded) }, fold.Refused, ""},
		"ended":      {func(s *scene) { s.start("run-e", 1, patient); s.finish("run-e", 1, tidemill.OutcomeSucceeded) }, fold.Refused, tidemill.RunSucceeded},
	} {
		s := newScene(t)
		s.is(s.ask("e", tidemill.RunRequested{}), fold.Accepted)
		c.before(s)
		if v := cancel(s); v.Result != c.want {
			t.Errorf("%s: cancelling is %s: %s", name, v.Result, v.Reason)
		}
		if s.ended == nil && c.state != "" || s.ended != nil && s.ended.State != c.state {
			t.Errorf("%s: then it has ended as %+v", name, s.ended)
		}
	}
}

// A cancelled run gets no further attempt, with any outcome of its attempt.
func TestTheEndOfWhatIsCancelled(t *testing.T) {
	t.Parallel()
	for _, o := range []tidemill.Outcome{tidemill.OutcomeSucceeded, tidemill.OutcomeFailed, tidemill.OutcomeLost, tidemill.OutcomeCancelled} {
		s := newScene(t)
		s.ask("e", tidemill.RunRequested{})
		s.start("run-e", 1, patient)
		s.is(s.fold(tidemill.TypeRunCancelled, "run-e", tidemill.RunCancelledData{Reason: "a slip"}), fold.Accepted)
		s.is(s.fold(tidemill.TypeRunCancelled, "run-e", tidemill.RunCancelledData{Reason: "again"}), fold.Known)
		if r := s.m.Live; r.Cancel == nil || r.Cancel.By != "ada" || r.Cancel.Reason != "a slip" || r.Attempt() == nil {
			t.Errorf("%s: its agent is told %+v", o, r)
		}
		s.is(s.finish("run-e", 1, o), fold.Accepted)
		if s.ended == nil || s.ended.State != tidemill.RunCancelled || s.ended.Reason != "a slip" || s.ended.Attempts[0].Outcome != o {
			t.Errorf("%s: it has ended as %+v", o, s.ended)
		}
	}
}

// The data of a cause after the lookup of the inputs may not be in them, so the start is
// refused.
func TestACauseBetweenLookAndStart(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.is(s.ask("a", tidemill.RunRequested{}), fold.Accepted)
	seen := s.m.Waiting.LastAsked()
	s.is(s.ask("b", tidemill.RunRequested{}), fold.Merged)
	s.is(s.ask("b", tidemill.RunRequested{}), fold.Known)
	stale := tidemill.RunStarted{Attempt: 1, Seen: seen, Plan: &patient}
	s.is(s.fold(tidemill.TypeRunStarted, "run-a", stale), fold.Refused)
	stale.Seen = s.m.Waiting.LastAsked()
	s.is(s.fold(tidemill.TypeRunStarted, "run-a", stale), fold.Accepted)
	s.is(s.ask("c", tidemill.RunRequested{}), fold.Accepted) // it asks for the next run
	s.is(s.fold(tidemill.TypeRunStarted, "run-c", tidemill.RunStarted{Attempt: 1, Seen: s.m.Waiting.LastAsked(), Plan: &patient}), fold.Refused)
	if run, _ := s.m.DueRun(); run != nil {
		t.Errorf("beside a live run %s is due", run.ID)
	}
	for cause, run := range map[string]string{"a": "run-a", "b": "run-a", "c": "run-c", "d": ""} {
		if got := s.m.RunOf(causeOf(cause)); got != run {
			t.Errorf("%s asked for %q, want %q", cause, got, run)
		}
	}
}

// A start that misses a cause closes the run, so that the next start succeeds, however fast causes
// come. Causes after that ask for the next run.
func TestAStartThatMissesACauseClosesTheRun(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	start := func(run string, causes int) fold.Verdict {
		return s.fold(tidemill.TypeRunStarted, run, tidemill.RunStarted{Attempt: 1, Causes: causes, Plan: &patient})
	}
	s.is(s.ask("a", tidemill.RunRequested{}), fold.Accepted)
	s.is(s.ask("b", tidemill.RunRequested{}), fold.Merged)
	s.is(start("run-a", 1), fold.Closed)
	if r, due := s.m.DueRun(); r == nil || r.ID != "run-a" || due.After(s.now) || r.State != tidemill.RunWaiting || r.Causes != 2 {
		t.Fatalf("due is %+v", r)
	}
	s.is(s.ask("c", tidemill.RunRequested{}), fold.Accepted) // it asks for the next run
	s.is(start("run-a", 1), fold.Refused)                    // another process is late
	s.is(start("run-c", 1), fold.Refused)
	s.is(s.fold(tidemill.TypeRunSeen, "run-a", tidemill.RunSeen{Pending: "x"}), fold.Refused)
	s.is(s.finish("run-a", 0, tidemill.OutcomeFailed), fold.Refused)
	s.is(start("run-a", 2), fold.Accepted)
	for cause, run := range map[string]string{"a": "run-a", "b": "run-a", "c": "run-c"} {
		if got := s.m.RunOf(causeOf(cause)); got != run {
			t.Errorf("%s asked for %q, want %q", cause, got, run)
		}
	}
	s.is(s.finish("run-a", 1, tidemill.OutcomeSucceeded), fold.Accepted)
	s.is(start("run-c", 1), fold.Accepted)
}

// Runs are numbered when they begin, from the first start that names its causes on. A key's end notes
// how many have begun.
func TestBegunRunsAreNumbered(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	run := func(cause string, d tidemill.RunStarted, want int64) {
		t.Helper()
		s.is(s.ask(cause, tidemill.RunRequested{}), fold.Accepted)
		d.Attempt, d.Seen, d.Plan = 1, s.m.Waiting.LastAsked(), &patient
		s.is(s.fold(tidemill.TypeRunStarted, "run-"+cause, d), fold.Accepted)
		if s.m.Live.Number != want {
			t.Errorf("run %s has number %d, want %d", cause, s.m.Live.Number, want)
		}
		s.is(s.finish("run-"+cause, 1, tidemill.OutcomeSucceeded), fold.Accepted)
	}
	run("a", tidemill.RunStarted{}, 0) // of an earlier version
	run("b", tidemill.RunStarted{Causes: 1}, 1)
	run("c", tidemill.RunStarted{}, 2) // of a process that is not upgraded yet
	s.is(s.fold(tidemill.TypeRunForgotten, "", tidemill.RunForgotten{Cause: causeOf("end")}), fold.Accepted)
	run("d", tidemill.RunStarted{Causes: 1}, 3)
	if s.m.Begun != 3 || s.m.Removed != 2 {
		t.Errorf("%d have begun, and %d when the key went", s.m.Begun, s.m.Removed)
	}
}

// A cause that may delay the run still does: the start is refused until the run is due again.
func TestACauseDelaysARunThatStarts(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	wait := tidemill.RunRequested{Debounce: time.Minute, MaxWait: time.Hour}
	s.is(s.ask("a", wait), fold.Accepted)
	s.now = s.now.Add(time.Minute)
	s.is(s.ask("b", wait), fold.Merged)
	stale := tidemill.RunStarted{Attempt: 1, Causes: 1, Plan: &patient}
	s.is(s.fold(tidemill.TypeRunStarted, "run-a", stale), fold.Refused)
	s.now = s.now.Add(time.Hour)
	s.is(s.fold(tidemill.TypeRunStarted, "run-a", stale), fold.Closed)
}

// A closed run can be cancelled, and ends with its key.
func TestTheEndOfAClosedRun(t *testing.T) {
	t.Parallel()
	for _, forget := range []bool{false, true} {
		s := newScene(t)
		s.is(s.ask("a", tidemill.RunRequested{}), fold.Accepted)
		s.is(s.ask("b", tidemill.RunRequested{}), fold.Merged)
		s.is(s.fold(tidemill.TypeRunStarted, "run-a", tidemill.RunStarted{Attempt: 1, Causes: 1, Plan: &patient}), fold.Closed)
		s.is(s.ask("c", tidemill.RunRequested{}), fold.Accepted)
		if forget {
			v := s.fold(tidemill.TypeRunForgotten, "", tidemill.RunForgotten{Cause: causeOf("end")})
			if s.is(v, fold.Accepted); len(v.Forgotten) != 2 || s.m.Live != nil || s.m.Waiting != nil {
				t.Errorf("forgotten are %v, left %+v", v.Forgotten, s.m)
			}
			continue
		}
		s.is(s.fold(tidemill.TypeRunCancelled, "run-a", tidemill.RunCancelledData{}), fold.Accepted)
		if r, _ := s.m.DueRun(); s.ended == nil || s.ended.State != tidemill.RunCancelled || s.m.Live != nil || r == nil || r.ID != "run-c" {
			t.Errorf("ended is %+v, due %+v", s.ended, r)
		}
	}
}

// Causes that may still be repeated are kept, within limits.
func TestCausesAreForgotten(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	one := func(cause string) {
		t.Helper()
		s.is(s.ask(cause, tidemill.RunRequested{}), fold.Accepted)
		s.is(s.start("run-"+cause, 1, patient), fold.Accepted)
		s.is(s.finish("run-"+cause, 1, tidemill.OutcomeSucceeded), fold.Accepted)
	}
	name := func(i int) string { return "e" + string(rune('0'+i/10)) + string(rune('0'+i%10)) }
	for i := range 40 {
		one(name(i))
	}
	if len(s.m.Ended) != fold.KeptRuns || s.m.Ended[9] != "run-e39" {
		t.Errorf("it names %v", s.m.Ended)
	}
	s.is(s.ask("e00", tidemill.RunRequested{}), fold.Known) // its run is not named any more, but the cause is kept for days
	s.now = s.now.Add(8 * 24 * time.Hour)
	one("late") // the old causes are dropped now, except the newest seenLeast
	for i := range 40 {
		known := s.m.RunOf(causeOf(name(i))) != ""
		if want := i >= 40-31; known != want {
			t.Errorf("%s is known: %v", name(i), known)
		}
	}
	s.is(s.ask("first", tidemill.RunRequested{Debounce: time.Hour}), fold.Accepted)
	for i := range 12_000 {
		s.is(s.ask("x"+time.Duration(i).String(), tidemill.RunRequested{Debounce: time.Hour}), fold.Merged)
	}
	r := s.m.Waiting
	if r.Causes != 12_001 || len(r.Asked) != 10_000 || r.LastAsked() != s.offset-1 || r.First != causeOf("first") {
		t.Errorf("%d causes, %d offsets up to %d, the first %v", r.Causes, len(r.Asked), r.LastAsked(), r.First)
	}
	data, err := json.Marshal(s.m)
	if err != nil || len(data) > 200<<10 {
		t.Errorf("it has %d bytes, %v", len(data), err)
	}
	s.is(s.ask("x"+time.Duration(11_999).String(), tidemill.RunRequested{}), fold.Known)
	causes := 0
	for _, seen := range s.m.Seen {
		causes += len(seen.Causes) / 8
	}
	if causes != 4096 || s.m.RunOf(causeOf("late")) != "" {
		t.Errorf("%d causes are remembered, the run before asked for by one of them: %q", causes, s.m.RunOf(causeOf("late")))
	}
	s.is(s.ask("late", tidemill.RunRequested{}), fold.Known)  // its run is still named
	s.is(s.ask("first", tidemill.RunRequested{}), fold.Known) // its run waits
}

// A lost attempt reports nothing, so the result of the attempt before stays.
func TestTheResultOfTheNewestThatTold(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.ask("e", tidemill.RunRequested{})
	s.start("run-e", 1, patient)
	s.fold(tidemill.TypeRunFinished, "run-e", tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeLost, Reason: "gone"})
	if r := s.m.Live.Result; r == nil {
		t.Error("it has no result at all")
	}
	s.start("run-e", 2, patient)
	s.fold(tidemill.TypeRunFinished, "run-e", tidemill.RunFinished{Attempt: 2, Outcome: tidemill.OutcomeFailed, Result: tidemill.Result{Exit: 3}})
	s.start("run-e", 3, patient)
	s.finish("run-e", 3, tidemill.OutcomeLost)
	if r := s.m.Live.Result; r == nil || r.Exit != 3 {
		t.Errorf("its result is %+v", r)
	}
}

// Ids that are not valid UTF-8 would change when they are encoded, so such facts are refused.
func TestFactsThatAreNoText(t *testing.T) {
	t.Parallel()
	data := []byte(`{"cause":{"source":"/shop","id":"e"}}`)
	for _, f := range []fold.Fact{{Run: "\xb3"}, {Run: "r", Key: "\xb3"}, {Run: "r", Recipe: "\xb3"}} {
		var m fold.Making
		f.Type, f.Data = tidemill.TypeRunRequested, data
		if v := m.Apply(f); v.Result != fold.Refused || m.Waiting != nil {
			t.Errorf("%+v is %+v", f, v)
		}
	}
	var m fold.Making
	if v := m.Apply(fold.Fact{Run: "r", By: "a\xb3", Type: tidemill.TypeRunRequested, Data: data}); v.Result != fold.Accepted || m.Waiting.By != "a\uFFFD" {
		t.Errorf("%+v, by %q", v, m.Waiting.By)
	}
}
