package ledger_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// listModels reads a page while the models change, and checks that the query selects each
// model on it.
func (c *chance) listModels(ctx context.Context, w *world, l *ledger.Ledger, r *rand.Rand) {
	q := modelQuery(r, c.keys)
	page, err := l.Models(ctx, q)
	if err != nil && !errors.Is(err, ledger.ErrCatchingUp) {
		w.t.Error(err)
	}
	for i := range page.Models {
		if !matchesQuery(q, &page.Models[i]) {
			w.t.Errorf("%+v lists %+v", q, page.Models[i])
		}
	}
}

func modelQuery(r *rand.Rand, keys int) ledger.ModelQuery {
	q := ledger.ModelQuery{Limit: 1 + r.IntN(10), Awaiting: r.IntN(4) == 0, Pinned: r.IntN(4) == 0}
	if r.IntN(3) == 0 {
		q.Recipe = []string{"intent", "fraud/", "none"}[r.IntN(3)]
	}
	if r.IntN(3) == 0 {
		q.Prefix = []string{"intent/", "fraud/bot-1", "fraud/bot-1/", "z", "intent"}[r.IntN(5)]
	}
	if r.IntN(5) == 0 {
		q.Key = fmt.Sprintf("bot of intent/bot-%d", r.IntN(keys))
	}
	if r.IntN(2) == 0 {
		q.Stale = time.Unix(int64(r.IntN(1e9)), 0)
	}
	return q
}

// matchesQuery is a simple implementation of a query.
func matchesQuery(q ledger.ModelQuery, m *fold.Model) bool {
	awaiting := slices.ContainsFunc(m.Versions, func(h fold.Held) bool { return h.State == tidemill.VersionAwaiting })
	switch {
	case len(m.Versions) == 0, q.Recipe != "" && m.Recipe != q.Recipe, q.Key != "" && m.Key != q.Key, !strings.HasPrefix(m.Name, q.Prefix):
		return false
	case q.Awaiting && !awaiting, q.Pinned && m.Pin == nil, !q.Stale.IsZero() && !began(m).Before(q.Stale):
		return false
	}
	return true
}

func began(m *fold.Model) time.Time {
	for _, h := range m.Versions {
		if h.Number == m.Champion {
			return h.Began
		}
	}
	return time.Time{}
}

// listsModels compares the lists and each model with a simple fold.
func (w *world) listsModels(l *ledger.Ledger) {
	w.t.Helper()
	caughtUp(w.t, l)
	whole := w.foldLog()
	w.checkFleet(l, whole)
	all := whole.models
	r := rand.New(rand.NewPCG(3, uint64(len(all))))
	for range 40 {
		q := modelQuery(r, 20)
		var want []*plainModel
		for _, m := range all {
			if matchesQuery(q, &m.Model) {
				want = append(want, m)
			}
		}
		slices.SortFunc(want, func(a, b *plainModel) int {
			if q.Stale.IsZero() {
				return cmp.Compare(a.Name, b.Name)
			}
			return cmp.Or(began(&a.Model).Compare(began(&b.Model)), cmp.Compare(a.Name, b.Name))
		})
		names := make([]string, len(want))
		for i, m := range want {
			names[i] = m.Name
		}
		if got := modelPages(w.t, l, q); !slices.Equal(got, names) {
			w.t.Fatalf("%+v:\n have %v\n want %v", q, got, names)
		}
	}
	w.newest(l, all)
	var models []fold.Model
	want := map[string]map[string]float64{}
	for name, m := range all {
		w.checkModel(l, name, m)
		if models = append(models, m.Model); m.Champion != 0 {
			want[name] = m.versions[m.Champion].Metrics
		}
	}
	got, err := l.ChampionMetrics(w.t.Context(), models)
	must(w.t, err)
	if asText(w.t, got) != asText(w.t, want) {
		w.t.Errorf("the champions' metrics are\n %v, want\n %v", got, want)
	}
}

// newest compares NewestChampions with a simple fold.
func (w *world) newest(l *ledger.Ledger, all map[string]*plainModel) {
	w.t.Helper()
	want := map[string]time.Time{}
	for _, m := range all {
		if b := began(&m.Model).Truncate(time.Millisecond); m.Champion != 0 && b.After(want[m.Recipe]) {
			want[m.Recipe] = b
		}
	}
	got, err := l.NewestChampions(w.t.Context())
	must(w.t, err)
	if !maps.EqualFunc(got, want, time.Time.Equal) {
		w.t.Fatalf("the newest champions are of %v, want %v", got, want)
	}
}

// modelPages reads all pages.
func modelPages(t testing.TB, l *ledger.Ledger, q ledger.ModelQuery) []string {
	t.Helper()
	names := []string{}
	for {
		p, err := l.Models(t.Context(), q)
		must(t, err)
		if len(p.Models) != q.Limit && p.Next != "" || len(p.Models) > q.Limit {
			t.Fatalf("a page of %d, and %q", len(p.Models), p.Next)
		}
		for _, m := range p.Models {
			names = append(names, m.Name)
		}
		if q.After = p.Next; q.After == "" {
			if p.Total != len(names) {
				t.Errorf("%+v has %d models by its count, want %d", q, p.Total, len(names))
			}
			return names
		}
	}
}

// checkModel compares a model and its versions with a simple fold.
func (w *world) checkModel(l *ledger.Ledger, name string, want *plainModel) {
	w.t.Helper()
	m, err := l.Model(w.t.Context(), name)
	must(w.t, err)
	if asText(w.t, m) != asText(w.t, want.Model) {
		w.t.Errorf("%s is\n %s, want\n %s", name, asText(w.t, m), asText(w.t, want.Model))
	}
	versions, err := l.Versions(w.t.Context(), name)
	must(w.t, err)
	var all []ledger.VersionRecord
	for _, h := range slices.Backward(want.Versions) {
		all = append(all, ledger.VersionRecord{Version: *want.versions[h.Number], State: h.State, Judgement: want.judgements[h.Number]})
	}
	if asText(w.t, versions) != asText(w.t, all) {
		w.t.Errorf("of %s there are\n %s, want\n %s", name, asText(w.t, versions), asText(w.t, all))
	}
}

func TestNoPlaceInTheListOfModels(t *testing.T) {
	t.Parallel()
	l := newWorld(t, 1).open()
	for _, q := range []ledger.ModelQuery{{After: "x"}, {After: "x.y"}, {After: "-1.y"}, {After: "7.y"}, {After: "x.y", Stale: time.Now()}} {
		if _, err := l.Models(t.Context(), q); !errors.Is(err, ledger.ErrNoPlace) || !strings.Contains(err.Error(), "first page") {
			t.Errorf("%+v: %v", q, err)
		}
	}
}
