package trials

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/config/gate"
)

// rules are the compiled terms of a trial.
type rules struct {
	tidemill.TrialTerms
	pass   *gate.Gate
	refuse []*gate.Gate // one of each clause, because each needs events of its own kind
}

func newRules(t tidemill.TrialTerms) (*rules, error) {
	pass, err := gate.CompileStream(t.Pass)
	if err != nil {
		return nil, err
	}
	r := &rules{TrialTerms: t, pass: pass}
	for i := range t.Refuse {
		one, err := gate.CompileStream(t.Refuse[i : i+1])
		if err != nil {
			return nil, err
		}
		r.refuse = append(r.refuse, one)
	}
	return r, nil
}

// figures returns the figures that clauses name, with a lower bound of the lead at a level.
func (s *summary) figures(level float64) gate.StreamFigures {
	return gate.StreamFigures{TrialCounts: s.TrialCounts, Lead: s.leadAt(level), P99: s.p99}
}

// passes reports whether all clauses hold for a promotion at a level.
func (r *rules) passes(s *summary, level float64) bool {
	count := s.Answered
	if r.pass.NeedsLabels() {
		count = s.Labelled
	}
	return count >= r.AtLeast && !slices.ContainsFunc(r.pass.JudgeStream(s.figures(level)), func(c tidemill.Clause) bool { return !c.Passed })
}

// refuses returns the clause that refuses the candidate at once; nil if none does.
func (r *rules) refuses(s *summary, level float64) *tidemill.Clause {
	for _, one := range r.refuse {
		count := s.Answered
		if one.NeedsLabels() {
			count = s.Labelled
		}
		if count < r.AtLeast {
			continue
		}
		if c := one.JudgeStream(s.figures(level))[0]; c.Passed {
			return &c
		}
	}
	return nil
}

// decision is the state of a trial at one look.
type decision struct {
	outcome  tidemill.TrialOutcome // empty while the trial goes on
	clauses  []tidemill.Clause
	sentence string
}

// decide decides by the figures of one look. promoted says whether the fleet's budget lets the candidate pass.
func (r *rules) decide(name string, champion int, s *summary, b tidemill.TrialBudget, promoted bool, took time.Duration) decision {
	d := decision{clauses: r.pass.JudgeStream(s.figures(b.Level))}
	switch refused := r.refuses(s, b.Level); {
	case promoted:
		d.outcome = tidemill.TrialPassed
		d.sentence = name + " passes its trial: " + Text(s.TrialCounts, s.leadAt(b.Level), champion)
	case refused != nil:
		d.outcome = tidemill.TrialRefused
		refusing := *refused
		refusing.Passed, refusing.Note = false, "it refuses the candidate"
		d.clauses = append(d.clauses, refusing)
		d.sentence = name + " is refused by its trial: " + gate.StreamValues([]tidemill.Clause{*refused}) + "; " + Text(s.TrialCounts, s.leadAt(b.Level), champion)
	case took >= r.Until:
		d.outcome = tidemill.TrialGivenUp
		d.sentence = fmt.Sprintf("%s: its trial is given up after %s: %s; %s", name, shortSpan(r.Until), r.lacking(s, b), Text(s.TrialCounts, s.leadAt(b.Level), champion))
	}
	return d
}

// giveUp ends a trial whose candidate has not answered all events. Its figures say nothing about the others.
func (r *rules) giveUp(t *trial) decision {
	why := "it is too slow"
	if t.lastErr != "" {
		why = t.lastErr
	}
	return decision{outcome: tidemill.TrialGivenUp, clauses: r.pass.JudgeStream(t.sum.figures(r.Alpha)),
		sentence: fmt.Sprintf("%s: its trial is given up after %s: the candidate has not answered %s of the champion: %s", t.name(), shortSpan(r.Until), events(len(t.seen.needed), "event"), why)}
}

// lacking says why there is no verdict.
func (r *rules) lacking(s *summary, b tidemill.TrialBudget) string {
	switch {
	case s.Answered == 0:
		return "the champion has answered no event"
	case r.pass.NeedsLabels() && s.Labelled == 0:
		return "no label has come"
	case r.pass.NeedsLabels() && s.Labelled < r.AtLeast:
		return fmt.Sprintf("%d of the %d labelled events that a verdict needs have come", s.Labelled, r.AtLeast)
	case !r.pass.NeedsLabels() && s.Answered < r.AtLeast:
		return fmt.Sprintf("%d of the %d events that a verdict needs have come", s.Answered, r.AtLeast)
	}
	if failed := r.pass.StreamFailures(r.pass.JudgeStream(s.figures(b.Level))); failed != "" {
		return failed
	}
	return "it passed too late"
}

// Text says how a candidate compares with the champion, in words.
func Text(c tidemill.TrialCounts, lead tidemill.Estimate, champion int) string {
	if c.Answered == 0 {
		return fmt.Sprintf("version %d has answered no event yet", champion)
	}
	text := fmt.Sprintf("on %s it disagrees with version %d on %s %%", events(c.Answered, "event"), champion, percent(float64(c.Answered-c.Agreed)/float64(c.Answered)))
	if c.Errors > 0 {
		text += ", with " + events(c.Errors, "error")
	}
	if c.Labelled == 0 {
		return text + "; no label has come yet, so it is not known which one is right"
	}
	return text + fmt.Sprintf("; on %s only it is right %d times and only version %d %d times: lead %s points (%s to %s)",
		events(c.Labelled, "labelled event"), c.Wins, champion, c.Losses, percent(lead.Value), percent(lead.Low), percent(lead.High))
}

func events(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// percent prints a share as points.
func percent(x float64) string {
	return strings.TrimSuffix(strings.Replace(fmt.Sprintf("%.1f", 100*x), "-0.0", "0.0", 1), ".0")
}

// shortSpan prints a duration as the config has it, such as 48h.
func shortSpan(d time.Duration) string {
	text := d.String()
	text = strings.TrimSuffix(text, "m0s")
	if text != d.String() {
		text = strings.TrimSuffix(text+"m", "h0m")
		if !strings.HasSuffix(text, "m") {
			text += "h"
		}
	}
	return text
}

// family has the trials of one recipe whose promotions share a budget.
type family struct {
	alpha  float64
	trials int       // running trials, and those that have ended within the last 30 days
	levels []float64 // levels at which trials among them have passed
}

// budgetWith returns the budget if some more trials pass at this moment.
func (f *family) budgetWith(more int) tidemill.TrialBudget {
	promoted := 0
	// A trial that passed earlier counts if it would pass at the present level too. Its level depends on the
	// count, which only grows, so a second pass of the loop changes no count that was taken.
	levels := slices.Sorted(slices.Values(f.levels))
	for k := len(levels); k >= 0; k-- {
		if k == 0 || levels[k-1] <= f.level(k+more) {
			promoted = k + more
			break
		}
	}
	promoted = max(promoted, 1)
	return tidemill.TrialBudget{Trials: f.trials, Promoted: promoted, Level: f.level(promoted)}
}

func (f *family) level(promoted int) float64 {
	return min(f.alpha, f.alpha*float64(promoted)/float64(max(f.trials, 1)))
}

// choose returns which of the candidates pass, and the budget at which they do: as many as pass at the level
// that so many promotions leave. passes reports whether a candidate passes at a level. Among all promotions a
// share of at most alpha is then expected to be wrong, even if the trials depend on each other (the e-BY
// procedure of Xu, Wang and Ramdas, which is e-BH for bounds).
func (f *family) choose(candidates int, passes func(i int, level float64) bool) (chosen []bool, b tidemill.TrialBudget) {
	for count := candidates; count > 0; {
		b = f.budgetWith(count)
		chosen = make([]bool, candidates)
		n := 0
		for i := range chosen {
			if chosen[i] = passes(i, b.Level); chosen[i] {
				n++
			}
		}
		if n >= count {
			return chosen, b
		}
		count = n
	}
	return make([]bool, candidates), f.budgetWith(1)
}
