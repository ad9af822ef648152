package trials

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
)

func terms() tidemill.TrialTerms {
	return tidemill.TrialTerms{Scorer: "s", Last: time.Hour, Until: 48 * time.Hour, Pass: []string{"stream.lead.low > 0", "stream.errors == 0"},
		Refuse: []string{"stream.lead.high < 0"}, AtLeast: 100, Alpha: 0.05}
}

func newTestRules(t testing.TB, terms tidemill.TrialTerms) *rules {
	t.Helper()
	r, err := newRules(terms)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A collection is the same in whatever order the records come, even if it keeps only some of the events.
func TestCollectionsDependOnTheRecordsAlone(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 9))
		n := 1 + rng.IntN(300)
		var acts []func(c *collection)
		for i := range n {
			at := place{int32(i % 3), int64(i)}
			label := fmt.Sprint(rng.IntN(3))
			group := ""
			if rng.IntN(2) == 0 {
				group = fmt.Sprint("g", rng.IntN(20))
			}
			acts = append(acts, func(c *collection) { c.addAnswer(at, 0, label, 1) })
			if rng.IntN(3) > 0 {
				d := &tidemill.OutcomeData{Truth: fmt.Sprint(rng.IntN(3)), Group: group}
				acts = append(acts, func(c *collection) { c.addOutcome(at, d, at) })
			}
		}
		var want summary
		digest := ""
		for round := range 4 {
			c := newCollection()
			c.most = 60
			for _, act := range acts {
				act(c)
			}
			for _, at := range c.needed {
				c.addCandidate(at, fmt.Sprint((at.offset*7+int64(seed))%3), at.offset%11 == 0, 0)
			}
			c.forgetAnswered()
			if len(c.needed) > 0 || len(c.pairs) > 60 {
				t.Fatalf("%d needed, %d pairs", len(c.needed), len(c.pairs))
			}
			got := c.sum(0.05)
			got.p99 = 0
			if round == 0 {
				want, digest = got, c.digest()
			}
			if n := len(got.steps); n != min(got.Labelled, tidemill.TrialSteps) || n > 0 && got.steps[n-1] != (tidemill.TrialStep{Labelled: got.Labelled, Won: got.lead.Won, Lost: got.lead.Lost, Tied: got.lead.Tied}) {
				t.Fatalf("seed %d: the steps %+v of %d labelled events end otherwise", seed, got.steps, got.Labelled)
			}
			if a, b := fmt.Sprintf("%+v %+v", want, *want.lead), fmt.Sprintf("%+v %+v", got, *got.lead); want.TrialCounts != got.TrialCounts || !slices.Equal(want.steps, got.steps) || want.leadAt(0.01) != got.leadAt(0.01) || digest != c.digest() {
				t.Fatalf("seed %d: %s\nand %s", seed, a, b)
			}
			rng.Shuffle(len(acts), func(i, j int) { acts[i], acts[j] = acts[j], acts[i] })
		}
	}
}

// A correction replaces the truth, and the first label keeps its place in the order.
func TestCorrectionsCount(t *testing.T) {
	t.Parallel()
	c := newCollection()
	at := place{0, 7}
	c.addAnswer(at, 0, "a", 0)
	c.addCandidate(at, "b", false, 0)
	c.addOutcome(at, &tidemill.OutcomeData{Truth: "a"}, place{0, 1})
	if s := c.sum(0.05); s.Losses != 1 || s.Wins != 0 || s.Agreed != 0 || s.Labelled != 1 {
		t.Errorf("%+v", s.TrialCounts)
	}
	c.addOutcome(at, &tidemill.OutcomeData{Truth: "b"}, place{0, 2})
	if s := c.sum(0.05); s.Losses != 0 || s.Wins != 1 || s.Labelled != 1 {
		t.Errorf("%+v", s.TrialCounts)
	}
	if c.pairs[at].outcome != (place{0, 1}) {
		t.Errorf("%+v", c.pairs[at])
	}
}

func TestTrialsEnd(t *testing.T) {
	t.Parallel()
	sum := func(answered, agreed, labelled, wins, losses, errors int) summary {
		s := newCollection().sum(0.05)
		s.TrialCounts = tidemill.TrialCounts{Answered: answered, Agreed: agreed, Labelled: labelled, Wins: wins, Losses: losses, Errors: errors}
		for i := range labelled {
			s.lead.Add("", i < wins || i >= wins+losses, i >= wins)
		}
		s.p99 = 3
		return s
	}
	strict := terms()
	strict.Refuse = append(strict.Refuse, "stream.disagree > 0.5")
	quick := terms()
	quick.Pass = []string{"stream.disagree < 0.1", "stream.p99 < 5"}
	for name, c := range map[string]struct {
		terms tidemill.TrialTerms
		sum   summary
		took  time.Duration
		want  tidemill.TrialOutcome
		says  string
	}{
		"better":               {strict, sum(900, 800, 500, 60, 20, 0), time.Hour, tidemill.TrialPassed, "only it is right 60 times"},
		"worse":                {strict, sum(900, 800, 500, 20, 60, 0), time.Hour, tidemill.TrialRefused, "stream.lead.high < 0"},
		"not known yet":        {strict, sum(900, 800, 500, 30, 28, 0), time.Hour, "", ""},
		"too few":              {strict, sum(900, 800, 99, 90, 0, 0), time.Hour, "", ""},
		"errors":               {strict, sum(900, 800, 500, 60, 20, 1), time.Hour, "", ""},
		"errors to the end":    {strict, sum(900, 800, 500, 60, 20, 1), 48 * time.Hour, tidemill.TrialGivenUp, "stream.errors == 0, but it is 1"},
		"other answers":        {strict, sum(900, 100, 0, 0, 0, 0), time.Hour, tidemill.TrialRefused, "stream.disagree > 0.5 (stream.disagree is 0.8889)"},
		"other answers, early": {strict, sum(50, 10, 0, 0, 0, 0), time.Hour, "", ""},
		"no label":             {strict, sum(900, 800, 0, 0, 0, 0), 48 * time.Hour, tidemill.TrialGivenUp, "given up after 48h: no label has come"},
		"no event":             {strict, sum(0, 0, 0, 0, 0, 0), 48 * time.Hour, tidemill.TrialGivenUp, "the champion has answered no event"},
		"without labels":       {quick, sum(900, 880, 0, 0, 0, 0), time.Hour, tidemill.TrialPassed, "no label has come yet, so it is not known which one is right"},
	} {
		r := newTestRules(t, c.terms)
		f := family{alpha: 0.05, trials: 1}
		chosen, b := f.choose(1, func(_ int, level float64) bool { return r.passes(&c.sum, level) })
		d := r.decide("version 5 of m", 4, &c.sum, b, chosen[0], c.took)
		if d.outcome != c.want || !strings.Contains(d.sentence, c.says) {
			t.Errorf("%s: %q, %s", name, d.outcome, d.sentence)
		}
	}
}

func TestBudgets(t *testing.T) {
	t.Parallel()
	f := family{alpha: 0.05, trials: 10, levels: []float64{0.005, 0.05}}
	// With one more, the first earlier one counts (0.005 <= 0.05*2/10) and the second does not.
	if b := f.budgetWith(1); b.Promoted != 2 || b.Level != 0.05*2/10 {
		t.Errorf("%+v", b)
	}
	if b := f.budgetWith(8); b.Promoted != 10 || b.Level != 0.05 {
		t.Errorf("%+v", b)
	}
	empty := family{alpha: 0.05}
	if b := empty.budgetWith(1); b.Level != 0.05 {
		t.Errorf("%+v", b)
	}
}
