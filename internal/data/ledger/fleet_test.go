package ledger_test

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// fleetText returns the keys of a fleet, a line for each.
func fleetText(f *ledger.Fleet) string {
	if f == nil {
		return ""
	}
	var lines []string
	for _, k := range f.All("") {
		lines = append(lines, fmt.Sprintf("%+v", k))
	}
	return strings.Join(lines, "\n")
}

// checkFleet compares the fleet with a simple fold.
func (w *world) checkFleet(l *ledger.Ledger, all *plainFold) {
	w.t.Helper()
	want := map[[2]string]ledger.FleetKey{}
	for member, m := range all.makings {
		if m.Gone && m.Live == nil && m.Waiting == nil {
			continue
		}
		recipe, key, _ := strings.Cut(member, "/")
		want[[2]string{recipe, key}] = fleetKeyOf(recipe, key, m)
	}
	for _, name := range slices.Sorted(maps.Keys(all.models)) {
		if m := all.models[name]; len(m.Versions) > 0 {
			k := want[[2]string{m.Recipe, m.Key}]
			withModel(&k, &m.Model)
			want[[2]string{m.Recipe, m.Key}] = k
		}
	}
	keys := slices.SortedFunc(maps.Values(want), func(a, b ledger.FleetKey) int {
		return cmp.Or(strings.Compare(a.Recipe, b.Recipe), strings.Compare(a.Key, b.Key))
	})
	var lines []string
	for _, k := range keys {
		lines = append(lines, fmt.Sprintf("%+v", k))
	}
	f, err := l.Fleet(w.t.Context())
	must(w.t, err)
	if got := fleetText(f); got != strings.Join(lines, "\n") {
		w.t.Fatalf("the fleet is\n%s\nwant\n%s", got, strings.Join(lines, "\n"))
	}
	for i, r := range f.Recipes {
		if from, to := f.Of(r.Name); from != r.From || to != r.To || f.At(from).Recipe != r.Name || f.At(to-1).Recipe != r.Name || i > 0 && from != f.Recipes[i-1].To {
			w.t.Fatalf("recipe %s is at %d to %d of %+v", r.Name, from, to, f.Recipes)
		}
	}
}

func fleetKeyOf(recipe, key string, m *fold.Making) ledger.FleetKey {
	k := ledger.FleetKey{Recipe: recipe, Key: key, Running: m.Live != nil || m.Waiting != nil}
	if m.Last != nil {
		k.Last = m.Last.State
		if k.Last == tidemill.RunFailed {
			k.Failed = m.Last.At
		}
	}
	return k
}

// withModel adds a model, unless the key has one whose newest version is newer.
func withModel(k *ledger.FleetKey, m *fold.Model) {
	newest := m.Versions[len(m.Versions)-1]
	at := newest.At.UnixMilli()
	if k.Model != "" && at <= k.Registered {
		return
	}
	k.Recipe, k.Key, k.Model, k.Champion, k.Newest, k.NewestState, k.Registered = m.Recipe, m.Key, m.Name, m.Champion, newest.Number, newest.State, at
	k.Pinned, k.Unserved, k.Drifted, k.Began = m.Pin != nil, m.Unserved != nil, len(m.Drifts) > 0, 0
	if m.Champion != 0 {
		k.Began = began(m).UnixMilli()
	}
}

// A key is in the fleet from its first request on. Its failed runs, its model and its removal are
// seen there, and the version changes with each of them.
func TestTheFleetFollowsAKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	l, s := w.open(), &script{}
	versions := map[string]string{}
	is := func(what, want string) {
		t.Helper()
		f, err := l.Fleet(t.Context())
		must(t, err)
		var got []string
		for _, k := range f.All("intent") {
			got = append(got, fmt.Sprint(k.Key, " ", k.Model, " ", k.Running, " ", k.Last, " ", k.Failed > 0, " ", k.Champion, "/", k.Newest, " ", k.NewestState))
		}
		if all := strings.Join(got, "; "); all != want {
			t.Errorf("%s: %s, want %s", what, all, want)
		}
		if was := versions[f.Version]; was != "" {
			t.Errorf("%s: the version is that of %s", what, was)
		}
		versions[f.Version] = what
		if again, err := l.Fleet(t.Context()); err != nil || again != f {
			t.Errorf("%s: it is made again although nothing has changed: %v", what, err)
		}
	}
	is("at first", "")
	first, run := s.runRequest("intent", "bot-1", "1", nil)
	m := w.add(l, first)
	is("requested", "bot-1  true  false 0/0 ")
	w.add(l, s.finish(w.add(l, s.start(m.Waiting, "gpu")).Live, tidemill.OutcomeSucceeded))
	is("succeeded", "bot-1  false succeeded false 0/0 ")
	name := "models/of/bot-1" // not the name of its making
	made := func(typ string, data any) *broker.View {
		v := s.ofModel(typ, name, run, data)
		v.Subject = "bot-1"
		return v
	}
	w.addModel(l, made(tidemill.TypeModelRegistered, tidemill.ModelRegistered{Judge: tidemill.Judge{Keep: 3}, Origin: tidemill.Origin{Run: run, Recipe: "intent", Began: time.Now()}}))
	is("registered", "bot-1 models/of/bot-1 false succeeded false 0/1 registered")
	w.addModel(l, made(tidemill.TypeModelPromotionProposed, tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: 1, Run: run, Judgement: &tidemill.Judgement{Passed: true}}))
	is("promoted", "bot-1 models/of/bot-1 false succeeded false 1/1 promoted")
	second, _ := s.runRequest("intent", "bot-1", "2", nil)
	m = w.add(l, second)
	m = w.add(l, s.start(m.Waiting, "gpu"))
	failed := s.finish(m.Live, tidemill.OutcomeFailed)
	failed.Data = []byte(`{"attempt":1,"outcome":"failed","permanent":true}`)
	w.add(l, failed)
	is("failed", "bot-1 models/of/bot-1 false failed true 1/1 promoted")
	w.add(l, s.view(tidemill.TypeRunForgotten, "intent", "bot-1", "", tidemill.RunForgotten{Cause: tidemill.Cause{Source: "/test", ID: "end"}}))
	is("removed", "bot-1 models/of/bot-1 false  false 1/1 promoted")
	w.addModel(l, made(tidemill.TypeModelRetired, tidemill.ModelRetired{Asked: time.Now().Add(time.Hour)}))
	is("retired", "")
	again, _ := s.runRequest("intent", "bot-1", "3", nil)
	w.add(l, again)
	is("requested again", "bot-1  true  false 0/0 ") // the failed run belongs to the removed key
}

// If a recipe's name of its models has changed, the newest version of a key counts.
func TestAKeyOfTheFleetWithTwoModels(t *testing.T) {
	t.Parallel()
	f := ledger.JoinFleet(map[string]string{"a/x": "0 - refused 0 1 10 intent x", "b/x": "5 - promoted 2 2 20 intent x", "c/x": "0 - refused 0 1 15 intent x"}, nil)
	if f.Len() != 1 || f.At(0).Model != "b/x" || f.At(0).Champion != 2 {
		t.Errorf("the fleet is %s", fleetText(f))
	}
}

// BenchmarkFleet parses and joins the entries of all keys, as after a change of all partitions. It reports
// the memory of a key beside the texts of its two entries.
func BenchmarkFleet(b *testing.B) {
	for _, n := range []int{20_000, 200_000} {
		b.Run(fmt.Sprint("keys=", n), func(b *testing.B) {
			models, keys, texts := map[string]string{}, map[string]string{}, 0
			for i := range n {
				key := fmt.Sprintf("bot-%07d", i)
				name, value := "intent/"+key, "1700000000000 - promoted 7 7 1700000000000 intent "+key
				models[name], keys[strings.Clone(name)] = value, "- succeeded 0"
				texts += 2*len(name) + len(value)
			}
			before := memory()
			f := ledger.JoinFleet(models, keys)
			if f.Len() != n {
				b.Fatalf("it has %d keys", f.Len())
			}
			took := memory() - before
			spent := cpu(b)
			for b.Loop() {
				ledger.JoinFleet(models, keys)
			}
			b.ReportMetric(float64((cpu(b)-spent).Microseconds())/1000/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(took)/float64(n), "B/key") // the maps have the texts
			b.ReportMetric(float64(texts)/float64(n), "texts-B/key")
			runtime.KeepAlive(f)
		})
	}
}
