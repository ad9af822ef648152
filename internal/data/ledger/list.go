package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

const defaultLimit = 100

// Query selects runs. Empty fields select all.
type Query struct {
	States      []tidemill.RunState
	Recipe, Key string
	Since       time.Time // earliest time of the first request, in whole milliseconds
	After       string    // Next of the page before
	Limit       int       // number of runs; 0 means 100
}

// Page is a part of the selected runs, the newest first.
type Page struct {
	Runs  []tidemill.Run
	Next  string // empty on the last page
	Total int    // number of runs on all pages; -1 if it is not known, because there is no count by time
}

// mark is a place between two pages: directly after the run that it names.
type mark struct {
	ms int64
	id string
}

func markOf(r *tidemill.Run) mark { return mark{r.Asking.UnixMilli(), r.ID} }

func (m mark) String() string { return strconv.FormatInt(m.ms, 10) + "." + m.id }

// compare orders by time, then by id; the newest is the greatest.
func (m mark) compare(o mark) int {
	if m.ms != o.ms {
		return int(max(-1, min(1, m.ms-o.ms)))
	}
	return strings.Compare(m.id, o.id)
}

// firstPage is the place before all runs.
var firstPage = mark{math.MaxInt32 * 1_000_000, ""}

func parseMark(text string) (mark, error) {
	if text == "" {
		return firstPage, nil
	}
	ms, id, ok := strings.Cut(text, ".")
	n, err := strconv.ParseInt(ms, 10, 64)
	if !ok || err != nil {
		return mark{}, fmt.Errorf("continue the list of runs after %q: %w; begin at the first page", text, ErrNoPlace)
	}
	return mark{n, id}, nil
}

// Runs lists runs.
func (l *Ledger) Runs(ctx context.Context, q Query) (Page, error) {
	after, err := parseMark(q.After)
	if err != nil {
		return Page{}, err
	}
	if q.Limit <= 0 {
		q.Limit = defaultLimit
	}
	q.Since = q.Since.Truncate(time.Millisecond)
	list := l.listAll
	if q.Key != "" {
		list = l.listKey
	}
	all, total, err := list(ctx, q, after)
	if err != nil {
		return Page{}, fmt.Errorf("list runs: %w", err)
	}
	p := Page{Runs: all, Total: total}
	if len(all) > q.Limit {
		p.Runs = all[:q.Limit]
		p.Next = markOf(&p.Runs[q.Limit-1]).String()
	}
	return p, nil
}

// listAll returns up to one run more than the limit, from the lists by recipe and state, and the
// number of runs in these lists.
func (l *Ledger) listAll(ctx context.Context, q Query, after mark) (all []tidemill.Run, total int, err error) {
	least, err := l.progress.known()
	if err != nil {
		return nil, 0, err
	}
	since := int64(0)
	if !q.Since.IsZero() {
		since = q.Since.UnixMilli()
	}
	args := []any{l.prefix, least.fill, least.sum, after.ms, after.id, since, q.Limit + 1, q.Recipe}
	for _, s := range q.States {
		args = append(args, string(s))
	}
	answer, err := scriptPage.Run(ctx, l.o.Redis, []string{l.key("at")}, args...).StringSlice()
	switch {
	case err != nil:
		return nil, 0, fmt.Errorf("ask redis: %w", err)
	case answer[0] == "behind":
		return nil, 0, l.recheckNow()
	}
	for i := 2; i+2 < len(answer); i += 3 {
		r, err := listedRun(answer[i], afterWords(answer[i+1], valueWords), answer[i+2])
		if err != nil {
			return nil, 0, err
		}
		if r != nil {
			all = append(all, *r)
		}
	}
	if !q.Since.IsZero() {
		return all, -1, nil
	}
	return all, int(parseNumber(answer[1])), nil
}

// listedRun decodes a run: from its own JSON if it has ended, else from its making.
func listedRun(id, value, making string) (*tidemill.Run, error) {
	if making == "" {
		return decodeRun(id, value)
	}
	m := &fold.Making{}
	if err := json.Unmarshal([]byte(making), m); err != nil {
		return nil, fmt.Errorf("read the making of run %s: %w", id, err)
	}
	return m.Find(id), nil
}

// listKey returns up to one run more than the limit, from all runs that the makings of a key name, and
// the number of those that the query selects.
func (l *Ledger) listKey(ctx context.Context, q Query, after mark) (all []tidemill.Run, total int, err error) {
	if all, err = l.ofKey(ctx, q); err != nil {
		return nil, 0, err
	}
	all = slices.DeleteFunc(all, func(r tidemill.Run) bool {
		return len(q.States) > 0 && !slices.Contains(q.States, r.State) || r.Asking.Before(q.Since)
	})
	total = len(all)
	all = slices.DeleteFunc(all, func(r tidemill.Run) bool { return markOf(&r).compare(after) >= 0 })
	slices.SortFunc(all, func(a, b tidemill.Run) int { return markOf(&b).compare(markOf(&a)) })
	return all[:min(len(all), q.Limit+1)], total, nil
}

func (l *Ledger) ofKey(ctx context.Context, q Query) ([]tidemill.Run, error) {
	recipes := []string{q.Recipe}
	if q.Recipe == "" {
		counts, err := l.Counts(ctx)
		if err != nil {
			return nil, err
		}
		recipes = recipes[:0]
		for recipe := range counts {
			recipes = append(recipes, recipe)
		}
	}
	members := make([]string, len(recipes))
	for i, r := range recipes {
		members[i] = tidemill.RunKey(r, q.Key)
	}
	makings, err := parseStates[fold.Making](ctx, l, hashMakings, members)
	if err != nil {
		return nil, err
	}
	return l.namedBy(ctx, makings)
}

// namedBy returns the runs that makings name.
func (l *Ledger) namedBy(ctx context.Context, makings []*fold.Making) ([]tidemill.Run, error) {
	var all []tidemill.Run
	var ended []string
	for _, m := range makings {
		for _, r := range []*tidemill.Run{m.Live, m.Waiting} {
			if r != nil {
				all = append(all, *r)
			}
		}
		ended = append(ended, m.Ended...)
	}
	more, err := l.readEnded(ctx, ended)
	return append(all, more...), err
}

// ModelQuery selects models. Empty fields select all.
type ModelQuery struct {
	Recipe, Key string
	Prefix      string
	Stale       time.Time // only models without a champion, or whose champion's run began earlier, in whole milliseconds
	Awaiting    bool      // only models with a version that waits for a person
	Pinned      bool
	Drifting    bool                          // only models of which a figure has drifted
	Seen        func(recipe, key string) bool // whether the caller may see models of a recipe and a key; nil for all. A page's Next names a model too
	After       string                        // Next of the page before
	Limit       int                           // number of models; 0 means 100
}

// ModelPage is a part of the selected models, by name; with Stale, the stalest first. It has fewer
// models than the limit if some models changed while the page was read.
type ModelPage struct {
	Models []fold.Model
	Next   string // empty on the last page
	Total  int    // number of models on all pages
}

// Models lists models that have versions.
func (l *Ledger) Models(ctx context.Context, q ModelQuery) (ModelPage, error) {
	after, err := parseModelMark(q)
	if err != nil {
		return ModelPage{}, err
	}
	if q.Limit <= 0 {
		q.Limit = defaultLimit
	}
	all, _, err := l.register.allEntries(ctx, l)
	if err != nil {
		return ModelPage{}, fmt.Errorf("list models: %w", err)
	}
	some, p := q.selectPage(all, after), ModelPage{Total: q.count(all)}
	if len(some) > q.Limit {
		some = some[:q.Limit]
		p.Next = q.markOf(&some[q.Limit-1]).String()
	}
	if p.Models, err = l.readListed(ctx, &q, some); err != nil {
		return ModelPage{}, fmt.Errorf("list models: %w", err)
	}
	return p, nil
}

// readListed reads the models of entries. It leaves out models that the query does not select
// any more.
func (l *Ledger) readListed(ctx context.Context, q *ModelQuery, some []entry) ([]fold.Model, error) {
	names := make([]string, len(some))
	for i := range some {
		names[i] = some[i].name
	}
	found, err := parseStates[fold.Model](ctx, l, hashModels, names)
	if err != nil {
		return nil, err
	}
	all := make([]fold.Model, 0, len(found))
	for _, m := range found {
		if e, ok := entryOf(m); ok && q.selects(&e) {
			all = append(all, *m)
		}
	}
	return all, nil
}

// NewestChampions returns, for each recipe that has champions, when the run of its newest
// champion began.
func (l *Ledger) NewestChampions(ctx context.Context) (map[string]time.Time, error) {
	all, _, err := l.register.allEntries(ctx, l)
	if err != nil {
		return nil, fmt.Errorf("look for the newest champions: %w", err)
	}
	newest := map[string]time.Time{}
	for i := range all {
		if began := time.UnixMilli(all[i].began); all[i].began > 0 && began.After(newest[all[i].recipe]) {
			newest[all[i].recipe] = began
		}
	}
	return newest, nil
}

// modelMark is a place between two pages: directly after the model that it names.
type modelMark struct {
	began int64 // start of the champion's run, in ms; 0 in a list by name
	name  string
}

// markOf returns the place directly after an entry, in the order of the query.
func (q *ModelQuery) markOf(e *entry) modelMark {
	if q.Stale.IsZero() {
		return modelMark{name: e.name}
	}
	return modelMark{e.began, e.name}
}

func (m modelMark) String() string { return strconv.FormatInt(m.began, 10) + "." + m.name }

func (m modelMark) compare(o modelMark) int {
	return cmp.Or(cmp.Compare(m.began, o.began), strings.Compare(m.name, o.name))
}

func parseModelMark(q ModelQuery) (modelMark, error) {
	if q.After == "" {
		return modelMark{began: -1}, nil
	}
	began, name, ok := strings.Cut(q.After, ".")
	n, err := strconv.ParseInt(began, 10, 64)
	if !ok || err != nil || n < 0 || q.Stale.IsZero() && n > 0 {
		return modelMark{}, fmt.Errorf("continue the list of models after %q: %w; begin at the first page", q.After, ErrNoPlace)
	}
	return modelMark{n, name}, nil
}

// selectPage returns the entries after a place that the query selects, in the query's order. It
// returns at most one entry more than the limit.
func (q *ModelQuery) selectPage(all []entry, after modelMark) []entry {
	if !q.Stale.IsZero() {
		return q.selectStalest(all, after)
	}
	var some []entry
	for _, e := range all[firstFrom(all, max(after.name, q.Prefix)):] {
		if len(some) > q.Limit || !strings.HasPrefix(e.name, q.Prefix) {
			break // names with the prefix are next to each other
		}
		if q.selects(&e) && q.markOf(&e).compare(after) > 0 {
			some = append(some, e)
		}
	}
	return some
}

// count returns how many entries the query selects on all pages.
func (q *ModelQuery) count(all []entry) (n int) {
	for i := firstFrom(all, q.Prefix); i < len(all) && strings.HasPrefix(all[i].name, q.Prefix); i++ {
		if q.selects(&all[i]) {
			n++
		}
	}
	return n
}

// selectStalest is like selectPage, but the stalest entry is first. It sorts only the entries of
// the page, because to sort all models would take longer than the rest of the query.
func (q *ModelQuery) selectStalest(all []entry, after modelMark) []entry {
	var some []entry
	for i := range all {
		e := &all[i]
		if !q.selects(e) {
			continue
		}
		at := q.markOf(e)
		full := len(some) > q.Limit
		if at.compare(after) <= 0 || full && at.compare(q.markOf(&some[q.Limit])) > 0 {
			continue
		}
		place, _ := slices.BinarySearchFunc(some, at, func(e entry, m modelMark) int { return q.markOf(&e).compare(m) })
		if full {
			some = some[:q.Limit]
		}
		some = slices.Insert(some, place, *e)
	}
	return some
}

// firstFrom returns the index of the first entry whose name is not before a given one.
func firstFrom(all []entry, name string) int {
	i, _ := slices.BinarySearchFunc(all, name, func(e entry, name string) int { return strings.Compare(e.name, name) })
	return i
}

func (q *ModelQuery) selects(e *entry) bool {
	return (q.Recipe == "" || e.recipe == q.Recipe) && (q.Key == "" || e.key == q.Key) && strings.HasPrefix(e.name, q.Prefix) &&
		(q.Stale.IsZero() || e.began < q.Stale.UnixMilli()) && (!q.Awaiting || e.awaiting) && (!q.Pinned || e.pinned) && (!q.Drifting || e.drifted) && (q.Seen == nil || q.Seen(e.recipe, e.key))
}
