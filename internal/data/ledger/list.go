package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
)

const defaultLimit = 100

// Query selects runs. Empty fields select all.
type Query struct {
	States      []tidemill.RunState
	Recipe, Key string
	Since       time.Time // asked for since then, to the millisecond
	After       string    // a page's Next
	Limit       int       // 100
}

// Page is some of them, the newest first.
type Page struct {
	Runs []tidemill.Run
	Next string // empty on the last
}

// mark is a place between two pages: behind the run that it names.
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

// start is before all runs.
var start = mark{math.MaxInt32 * 1_000_000, ""}

func parseMark(text string) (mark, error) {
	if text == "" {
		return start, nil
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
	all, err := list(ctx, q, after)
	if err != nil {
		return Page{}, fmt.Errorf("list runs: %w", err)
	}
	p := Page{Runs: all}
	if len(all) > q.Limit {
		p.Runs = all[:q.Limit]
		p.Next = markOf(&p.Runs[q.Limit-1]).String()
	}
	return p, nil
}

// listAll lists one more than the limit, from the lists by recipe and state.
func (l *Ledger) listAll(ctx context.Context, q Query, after mark) ([]tidemill.Run, error) {
	sum, err := l.decidable()
	if err != nil {
		return nil, err
	}
	since := int64(0)
	if !q.Since.IsZero() {
		since = q.Since.UnixMilli()
	}
	args := []any{l.prefix, sum, after.ms, after.id, since, q.Limit + 1, q.Recipe}
	for _, s := range q.States {
		args = append(args, string(s))
	}
	answer, err := scriptPage.Run(ctx, l.o.Redis, []string{l.key("at")}, args...).StringSlice()
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask redis: %w", err)
	case answer[0] == "behind":
		return nil, l.behind()
	}
	var all []tidemill.Run
	for i := 1; i+2 < len(answer); i += 3 {
		r, err := listedRun(answer[i], behindWords(answer[i+1], valueWords), answer[i+2])
		if err != nil {
			return nil, err
		}
		if r != nil {
			all = append(all, *r)
		}
	}
	return all, nil
}

// listedRun is a run as it stands for itself, or in its making.
func listedRun(id, value, making string) (*tidemill.Run, error) {
	if making == "" {
		return decodeRun(id, value)
	}
	m := &tidemill.Making{}
	if err := json.Unmarshal([]byte(making), m); err != nil {
		return nil, fmt.Errorf("read the making of run %s: %w", id, err)
	}
	return m.Find(id), nil
}

// listKey lists one more than the limit of those of a key: all that its makings
// name.
func (l *Ledger) listKey(ctx context.Context, q Query, after mark) ([]tidemill.Run, error) {
	all, err := l.ofKey(ctx, q)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(r tidemill.Run) bool {
		return len(q.States) > 0 && !slices.Contains(q.States, r.State) || r.Asking.Before(q.Since) || markOf(&r).compare(after) >= 0
	})
	slices.SortFunc(all, func(a, b tidemill.Run) int { return markOf(&b).compare(markOf(&a)) })
	return all[:min(len(all), q.Limit+1)], nil
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
	makings, err := states[tidemill.Making](ctx, l, hashMakings, members)
	if err != nil {
		return nil, err
	}
	return l.namedBy(ctx, makings)
}

// namedBy are the runs that makings name.
func (l *Ledger) namedBy(ctx context.Context, makings []*tidemill.Making) ([]tidemill.Run, error) {
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
	more, err := l.records(ctx, ended)
	return append(all, more...), err
}
