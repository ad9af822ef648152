package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/data/ledger"
)

// BenchmarkModels measures models with a history of nightly runs: the time to refill a
// flushed Redis, and the time of a look afterwards. With REFILL_MODELS=20000
// REFILL_NIGHTS=12 there are as many kept versions as after a year.
func BenchmarkModels(b *testing.B) {
	s, err := embedded.Start(b.Context(), embedded.Options{Dir: b.TempDir()})
	must(b, err)
	b.Cleanup(func() { _ = s.Close() })
	benchModels(b, worldOn(b, s.Kafka(), redisAlone(b), 24))
}

func benchModels(b *testing.B, w *world) {
	n := nightly{world: w, script: &script{at: time.Now().Add(-24 * time.Hour)}, models: fromEnv(b, "REFILL_MODELS", 500), runs: map[int]string{}}
	nights := fromEnv(b, "REFILL_NIGHTS", 3)
	for night := range nights {
		n.night(night)
	}
	facts := 6 * n.models * nights
	heap := memory()
	began := time.Now()
	l := w.openWith(w.options())
	refilled(b, l)
	took := time.Since(began)
	heap = memory() - heap
	b.Logf("%d facts of %d models and their runs, refilled in %s: %.0f facts/s; %d MB of heap, the ledger's and Redis's",
		facts, n.models, took.Round(time.Millisecond), float64(facts)/took.Seconds(), heap>>20)
	n.check(l, nights)
	n.measureQueries(b, l)
	for b.Loop() {
		_, err := l.Models(b.Context(), ledger.ModelQuery{})
		must(b, err)
	}
	b.ReportMetric(float64(facts)/took.Seconds(), "facts/s")
	b.ReportMetric(float64(heap)/(1<<20), "MB")
}

func fromEnv(b *testing.B, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	must(b, err)
	return n
}

// nightly retrains each model each night. One version in three is promoted.
type nightly struct {
	*world
	*script
	models int
	runs   map[int]string // runs of the night
}

func (n *nightly) night(night int) {
	seen := n.publish(n.models, func(i int) (v *broker.View) {
		v, n.runs[i] = n.runRequest("intent", fmt.Sprint("bot-", i), fmt.Sprint("tick-", night, "-", i), nil)
		return v
	})
	n.publish(5*n.models, func(at int) *broker.View { return n.fact(night, at/5, at%5, seen[at/5]) })
}

func (n *nightly) fact(night, i, step int, seen int64) *broker.View {
	key, run := fmt.Sprint("bot-", i), n.runs[i]
	name, champion := "intent/"+key, 3*((night+2)/3)-2 // every third version is promoted; this is the newest of them
	d := tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: night + 1, Run: run, Basis: max(champion, 0), Turn: int64((night + 2) / 3)}
	proposal := fmt.Sprint("proposal-", night, "-", i)
	switch step {
	case 0:
		p := plan("gpu", "")
		p.Inputs[0].Commit = tidemill.ID("commit", key, fmt.Sprint(night))
		return n.view(tidemill.TypeRunStarted, "intent", key, run, tidemill.RunStarted{Attempt: 1, Seen: seen, Plan: p, Where: tidemill.Where{Node: "node-1", Card: "H200"}})
	case 1:
		return n.view(tidemill.TypeRunFinished, "intent", key, run, tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded, Result: result(),
			Candidate: &tidemill.Candidate{Model: name, Judge: judge(), Origin: n.origin(night, i)}})
	case 2:
		return n.ofModel(tidemill.TypeModelRegistered, name, run, tidemill.ModelRegistered{Artifact: strings.Repeat("d", 64), Bytes: 4242, Files: 2, Report: strings.Repeat("e", 64),
			Metrics: result().Metrics, Judge: judge(), Origin: n.origin(night, i)})
	case 3:
		d.Judgement = judgement(night%3 == 0, champion)
		v := n.ofModel(tidemill.TypeModelPromotionProposed, name, run, d)
		v.ID = proposal
		return v
	}
	typ := tidemill.TypeModelRefused
	if night%3 == 0 {
		typ = tidemill.TypeModelPromoted
	}
	return n.ofModel(typ, name, run, tidemill.ModelAnnounced{Proposal: proposal, Version: night + 1, Judgement: judgement(night%3 == 0, champion)})
}

func judge() tidemill.Judge {
	return tidemill.Judge{Gate: []string{"metrics.accuracy >= 0.85", "metrics.accuracy >= champion.metrics.accuracy - 0.01"}, On: tidemill.GateOnSame, Promote: tidemill.PromoteAuto, Keep: 10}
}

func judgement(passed bool, champion int) *tidemill.Judgement {
	return &tidemill.Judgement{Passed: passed, Against: champion, Beside: champion, On: tidemill.GateOnSame, Sentence: "it is as good as version 7, on the same data: accuracy 0.93 and 0.92",
		Clauses: []tidemill.Clause{{Text: judge().Gate[0], Passed: true, Values: map[string]float64{"metrics.accuracy": 0.93}},
			{Text: judge().Gate[1], Passed: passed, Values: map[string]float64{"metrics.accuracy": 0.93, "champion.metrics.accuracy": 0.92}}}}
}

func (n *nightly) origin(night, i int) tidemill.Origin {
	key := fmt.Sprint("bot-", i)
	in := plan("gpu", "").Inputs[0]
	in.Commit = tidemill.ID("commit", key, fmt.Sprint(night))
	began := n.at.UTC()
	cause := tidemill.Cause{Source: "/test", ID: fmt.Sprint("tick-", night, "-", i)}
	return tidemill.Origin{Run: n.runs[i], Recipe: "intent", Key: key, Config: strings.Repeat("f", 64), Attempt: 1, Began: began, Ended: began.Add(time.Minute),
		Inputs: []tidemill.Input{in}, Causes: 1, First: cause, Newest: cause, Mark: tidemill.Mark{Partition: int32(i % 24), Offset: int64(night*1_000_000 + i)},
		Where: tidemill.Where{Node: "node-1", Card: "H200", Image: "sha256:" + strings.Repeat("a", 64)}}
}

// check fails the test if the fold has not accepted the history.
func (n *nightly) check(l *ledger.Ledger, nights int) {
	m, err := l.Model(n.t.Context(), "intent/bot-0")
	must(n.t, err)
	versions, err := l.Versions(n.t.Context(), m.Name)
	must(n.t, err)
	run, err := l.Links(n.t.Context(), "run/"+n.runs[0])
	must(n.t, err)
	if m.Champion != 3*((nights+2)/3)-2 || m.Last != nights || len(versions) != min(nights, 10) || len(m.Owed) > 0 || len(run) != 1 {
		n.t.Fatalf("%+v, %d versions, linked to %v", m, len(versions), run)
	}
	n.t.Logf("a model's state is %d bytes, a version's %d", len(asText(n.t, m)), len(asText(n.t, versions[0])))
}

// measureQueries measures requests of an operator, while a model changes from time to time.
func (n *nightly) measureQueries(b *testing.B, l *ledger.Ledger) {
	r := rand.New(rand.NewPCG(1, 1))
	name := func() string { return fmt.Sprint("intent/bot-", r.IntN(n.models)) }
	page, err := l.Models(b.Context(), ledger.ModelQuery{Limit: n.models / 2})
	must(b, err)
	list := func(q ledger.ModelQuery) func() error {
		return func() error { _, err := l.Models(b.Context(), q); return err }
	}
	change := func() error {
		_, _, err := l.AppendModel(b.Context(), n.ofModel(tidemill.TypeModelPromotionProposed, page.Models[r.IntN(len(page.Models))].Name, "",
			tidemill.PromotionProposed{Action: tidemill.ActionPin, Version: 1, Turn: -1}))
		return err
	}
	pin := func() error {
		m, err := l.Model(b.Context(), name())
		if err != nil {
			return err
		}
		d := tidemill.PromotionProposed{Action: tidemill.ActionPin, Version: m.Champion, Basis: m.Champion, Turn: m.Turn}
		if m.Pin != nil {
			d.Action = tidemill.ActionUnpin
		}
		_, _, err = l.AppendModel(b.Context(), n.ofModel(tidemill.TypeModelPromotionProposed, m.Name, "", d))
		return err
	}
	for _, of := range []struct {
		what  string
		every int // number of looks between two changes of a model; 0 for no change
		look  func() error
	}{
		{"the first page", 0, list(ledger.ModelQuery{})},
		{"a page in the middle", 0, list(ledger.ModelQuery{After: page.Next})},
		{"a page while models change", 1, list(ledger.ModelQuery{After: page.Next})},
		{"by key", 0, func() error { return list(ledger.ModelQuery{Key: strings.TrimPrefix(name(), "intent/")})() }},
		{"by prefix", 0, list(ledger.ModelQuery{Prefix: "intent/bot-12"})},
		{"the stalest", 0, list(ledger.ModelQuery{Stale: time.Now()})},
		{"a model and its versions", 0, func() error {
			name := name()
			if _, err := l.Model(b.Context(), name); err != nil {
				return err
			}
			_, err := l.Versions(b.Context(), name)
			return err
		}},
		{"links", 0, func() error { _, err := l.Links(b.Context(), "run/"+n.runs[r.IntN(n.models)]); return err }},
		{"a void proposal", 0, change},
	} {
		took := make([]time.Duration, 200)
		for i := range took {
			if of.every > 0 && i%of.every == 0 {
				must(b, pin())
			}
			began := time.Now()
			must(b, of.look())
			took[i] = time.Since(began)
		}
		slices.Sort(took)
		b.Logf("%-28s p50 %8s  p99 %8s", of.what, took[len(took)/2].Round(10*time.Microsecond), took[len(took)*99/100].Round(10*time.Microsecond))
	}
}
