package canary

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

var start = time.Date(2026, 11, 27, 3, 0, 0, 0, time.UTC)

func model() *fold.Model {
	return &fold.Model{Name: "m", Champion: 1, Canary: &fold.Canary{Version: 2, At: start, Canary: tidemill.Canary{Share: 0.1, Hold: time.Hour, Least: 100, Until: 24 * time.Hour}}}
}

// outcomes adds outcomes: of the canary one in ten, the others of the champion.
func (r *Record) outcomes10(rnd *rand.Rand, n int, champion, canary float64) {
	for i := range n {
		o := tidemill.OutcomeData{Version: 1, Label: "a", Truth: "b"}
		right := champion
		if i%10 == 9 {
			o.Version, right = 2, canary
		}
		if rnd.Float64() < right {
			o.Truth = "a"
		}
		r.Add(&o)
	}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		n                int
		champion, canary float64
		after            time.Duration
		want             string // part of the sentence; empty if it goes on
		passed           bool
	}{
		"the hold has not passed":           {2000, 0.9, 0.9, time.Minute, "", false},
		"as good as the champion":           {2000, 0.9, 0.9, time.Hour, "are not worse", true},
		"worse, before the hold has passed": {6000, 0.9, 0.7, time.Minute, "are worse", false},
		"too few outcomes":                  {500, 0.9, 0.9, 2 * time.Hour, "", false},
		"too few outcomes, and too late":    {500, 0.9, 0.9, 25 * time.Hour, "50 outcomes after 24h0m0s, fewer than 100", false},
	} {
		m := model()
		r := NewRecord(m)
		r.outcomes10(rand.New(rand.NewPCG(1, 1)), c.n, c.champion, c.canary)
		j := Decide(m, r, start.Add(c.after))
		switch {
		case (j == nil) != (c.want == ""):
			t.Errorf("%s: %+v", name, j)
		case j != nil && (j.Passed != c.passed || !strings.Contains(j.Sentence, c.want) || j.Against != 1):
			t.Errorf("%s: %+v", name, j)
		}
	}
}

func TestACanaryThatCannotBeSettledDoesNotKeepOthersWaiting(t *testing.T) {
	t.Parallel()
	w := New(Options{Now: func() time.Time { return start.Add(25 * time.Hour) }, Logger: slog.New(slog.DiscardHandler)})
	w.records = map[string]*Record{}
	var models []*fold.Model
	for _, name := range []string{"a", "b", "c"} {
		m := model()
		m.Name = name
		models, w.records[name] = append(models, m), NewRecord(m)
	}
	away := errors.New("its announcement cannot be read")
	settled := ""
	w.o.Settle = func(_ context.Context, model string, _ int, _ tidemill.Judgement) error {
		if model == "a" {
			return away
		}
		settled += model
		return nil
	}
	if err := w.settle(t.Context(), models); !errors.Is(err, away) || settled != "bc" {
		t.Errorf("settled %q, %v", settled, err)
	}
}

// A canary that a scorer cannot serve is refused after its hold, with the scorer's reason, also without a least number of outcomes.
func TestACanaryThatIsNotServed(t *testing.T) {
	t.Parallel()
	m := model()
	m.Canary.Least = 0
	m.Canary.Unserved = &fold.Unserved{Scorer: "s", Error: "no input z"}
	r := NewRecord(m)
	if j := Decide(m, r, start.Add(time.Minute)); j != nil {
		t.Errorf("before its hold has passed: %+v", j)
	}
	if j := Decide(m, r, start.Add(time.Hour)); j == nil || j.Passed || !strings.Contains(j.Sentence, "scorer s cannot serve it: no input z") {
		t.Errorf("%+v", j)
	}
	m.Canary.Unserved = nil
	if j := Decide(m, r, start.Add(time.Hour)); j == nil || !j.Passed {
		t.Errorf("%+v", j)
	}
}

// Of canaries that equal their champions, at most 5 % are refused for being worse, although they are looked at
// after every outcome. Canaries that are 15 points worse are nearly all refused within 1,000 of their outcomes.
func TestDecisionsAreRarelyWrong(t *testing.T) {
	t.Parallel()
	const seeds = 200
	refused := map[float64]int{}
	for _, canary := range []float64{0.85, 0.7} {
		for seed := range uint64(seeds) {
			m := model()
			m.Canary.Hold, m.Canary.Least = 1000*time.Hour, 1000
			r, rnd := NewRecord(m), rand.New(rand.NewPCG(seed, 2))
			for range 1000 {
				r.outcomes10(rnd, 10, 0.85, canary)
				if j := Decide(m, r, start); j != nil {
					refused[canary]++
					break
				}
			}
		}
	}
	if refused[0.85] > seeds*5/100 || refused[0.7] < seeds*95/100 {
		t.Errorf("refused of %d: %v", seeds, refused)
	}
}
