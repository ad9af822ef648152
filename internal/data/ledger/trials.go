package ledger

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev/internal/data/ledger/fold"
)

// TrialQuery selects trials that have ended. Empty fields select all.
type TrialQuery struct {
	Recipe, Key, Model string
	Seen               func(recipe, key string) bool // whether the caller may see models of a recipe and a key; nil for all
	After              string                        // Next of the page before
	Limit              int                           // number of trials; 0 means 100
}

// EndedTrial is a trial that has ended.
type EndedTrial struct {
	Model, Recipe, Key string
	fold.TrialEnd
	Record *VersionRecord // the version with its judgement; nil if the version is dropped
	held   *fold.Held     // nil if the version is dropped
}

// TrialPage is a part of the selected trials, the newest end first. A model keeps only its newest ones.
type TrialPage struct {
	Trials []EndedTrial
	Next   string // empty on the last page
}

// EndedTrials lists trials that have ended.
func (l *Ledger) EndedTrials(ctx context.Context, q TrialQuery) (TrialPage, error) {
	after, err := parseTrialMark(q.After)
	if err != nil {
		return TrialPage{}, err
	}
	p, err := l.endedTrials(ctx, &q, after, cmp.Or(q.Limit, defaultLimit))
	if err == nil {
		err = l.addRecords(ctx, p.Trials)
	}
	if err != nil {
		return TrialPage{}, fmt.Errorf("list the trials: %w", err)
	}
	return p, nil
}

// endedTrials reads models with the newest ends first, until no other model can have a newer one.
func (l *Ledger) endedTrials(ctx context.Context, q *TrialQuery, after trialMark, limit int) (p TrialPage, err error) {
	all, _, err := l.register.allEntries(ctx, l)
	if err != nil {
		return p, err
	}
	var some []entry
	for i := range all {
		if e := &all[i]; e.tried > 0 && q.selects(e) {
			some = append(some, *e)
		}
	}
	slices.SortFunc(some, func(a, b entry) int { return cmp.Compare(b.tried, a.tried) })
	for part := range slices.Chunk(some, personModels) {
		if len(p.Trials) > limit && p.Trials[limit].At.UnixMilli() > part[0].tried {
			break
		}
		names := make([]string, len(part))
		for i := range part {
			names[i] = part[i].name
		}
		models, err := parseStates[fold.Model](ctx, l, hashModels, names)
		if err != nil {
			return p, err
		}
		for _, m := range models {
			for _, end := range m.Trials {
				if t := (EndedTrial{Model: m.Name, Recipe: cmp.Or(end.Recipe, m.Recipe), Key: m.Key, TrialEnd: end, held: m.Find(end.Version)}); t.mark().compare(after) > 0 {
					p.Trials = append(p.Trials, t)
				}
			}
		}
		slices.SortFunc(p.Trials, func(a, b EndedTrial) int { return a.mark().compare(b.mark()) })
		p.Trials = p.Trials[:min(len(p.Trials), limit+1)]
	}
	if len(p.Trials) > limit {
		p.Trials = p.Trials[:limit]
		p.Next = p.Trials[limit-1].mark().String()
	}
	return p, nil
}

func (q *TrialQuery) selects(e *entry) bool {
	return (q.Recipe == "" || q.Recipe == e.recipe) && (q.Key == "" || q.Key == e.key) && (q.Model == "" || q.Model == e.name) && (q.Seen == nil || q.Seen(e.recipe, e.key))
}

// addRecords adds the versions of trials.
func (l *Ledger) addRecords(ctx context.Context, all []EndedTrial) error {
	var held []HeldBy
	for i := range all {
		if h := all[i].held; h != nil {
			held = append(held, HeldBy{Model: all[i].Model, Held: *h})
		}
	}
	records, err := l.VersionsOf(ctx, held)
	if err != nil {
		return err
	}
	for i := range records {
		for j := range all {
			if all[j].Model == records[i].Model && all[j].Version == records[i].Number {
				all[j].Record = &records[i]
			}
		}
	}
	return nil
}

// trialMark is a place between two pages: directly after the trial that it names.
type trialMark struct {
	ns      int64
	version int
	model   string
}

func (t *EndedTrial) mark() trialMark { return trialMark{t.At.UnixNano(), t.Version, t.Model} }

func (m trialMark) String() string { return fmt.Sprintf("%d.%d.%s", m.ns, m.version, m.model) }

// compare orders by time, the newest first.
func (m trialMark) compare(o trialMark) int {
	return cmp.Or(cmp.Compare(o.ns, m.ns), cmp.Compare(o.version, m.version), cmp.Compare(m.model, o.model))
}

func parseTrialMark(text string) (trialMark, error) {
	if text == "" {
		return trialMark{ns: math.MaxInt64}, nil
	}
	at, rest, _ := strings.Cut(text, ".")
	number, model, ok := strings.Cut(rest, ".")
	ns, err := strconv.ParseInt(at, 10, 64)
	version, versionErr := strconv.Atoi(number)
	if !ok || err != nil || versionErr != nil {
		return trialMark{}, fmt.Errorf("continue the list of trials after %q: %w; begin at the first page", text, ErrNoPlace)
	}
	return trialMark{ns, version, model}, nil
}
