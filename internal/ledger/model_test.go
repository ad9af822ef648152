package ledger_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// model is what Redis must hold: key → field or member → value or score. It is
// made from a plain fold of the log, one fact at a time.
type model map[string]map[string]string

func (m model) set(key, field, value string) {
	if m[key] == nil {
		m[key] = map[string]string{}
	}
	m[key][field] = value
}

func (m model) add(key, field string, n int) {
	old, _ := strconv.Atoi(m[key][field])
	m.set(key, field, strconv.Itoa(old+n))
}

func (m model) place(base string, shifts []int, score int64, member string, above ...[3]string) {
	digit := func(shift int) string {
		return strconv.FormatFloat(math.Floor(float64(score)/math.Pow(2, float64(shift))), 'f', -1, 64)
	}
	node := func(shift int) string { return fmt.Sprintf("%s:%d:%s", base, shift, digit(shift)) }
	m.set(node(shifts[0]), member, strconv.FormatInt(score, 10))
	for i, shift := range shifts {
		key := base
		if i+1 < len(shifts) {
			key = node(shifts[i+1])
		}
		m.set(key, digit(shift), digit(shift))
	}
	for _, a := range above {
		m.set(a[0], a[1], a[2])
	}
}

// modelOf folds all that is on the log.
func (w *world) modelOf() model {
	w.t.Helper()
	makings, ended, m := map[string]*tidemill.Making{}, map[string]*tidemill.Run{}, model{}
	ends, err := w.broker.Ends(w.t.Context(), tidemill.StreamFacts)
	must(w.t, err)
	sum := int64(0)
	for _, end := range ends {
		if sum += end.Offset; end.Offset > 0 {
			m.set("at", fmt.Sprint(end.Partition), fmt.Sprint(end.Offset))
		}
		for at := (broker.Position{Stream: tidemill.StreamFacts, Partition: end.Partition}); at.Offset < end.Offset; {
			at.Offset, err = w.broker.Read(w.t.Context(), at, 1<<20, func(e *broker.Incoming) bool {
				foldPlainly(e, end.Partition, makings, ended)
				return true
			})
			must(w.t, err)
		}
	}
	m.set("at", "sum", fmt.Sprint(sum))
	m.set("at", "ready", "1")
	for member, making := range makings {
		m.making(w.t, member, making, ended)
	}
	for _, of := range []string{"counts", "running", "queued"} {
		maps.DeleteFunc(m[of], func(_, n string) bool { return n == "0" })
	}
	return m
}

func foldPlainly(e *broker.Incoming, partition int32, makings map[string]*tidemill.Making, ended map[string]*tidemill.Run) {
	v := e.View.Clone()
	recipe, _ := v.Attribute(tidemill.AttrRecipe)
	member := recipe + "/" + v.Subject
	if e.Err != nil || !strings.HasPrefix(e.Type, "tidemill.run.") || string(e.Key) != member {
		return
	}
	if makings[member] == nil {
		makings[member] = &tidemill.Making{}
	}
	run, _ := v.Attribute(tidemill.AttrRun)
	by, _ := v.Attribute(tidemill.AttrAuthID)
	at, err := time.Parse(time.RFC3339Nano, v.Time)
	if err != nil {
		at = e.Time
	}
	verdict := makings[member].Apply(tidemill.Fact{Partition: partition, Offset: e.Offset, ID: v.ID, Type: v.Type, Recipe: recipe, Key: v.Subject,
		Run: run, By: by, At: at.UTC(), Data: v.Data})
	if r := verdict.Ended; r != nil {
		ended[r.ID] = r
	}
	delete(ended, verdict.Forgotten)
}

func (m model) making(t testing.TB, member string, making *tidemill.Making, ended map[string]*tidemill.Run) {
	text, err := json.Marshal(making)
	must(t, err)
	recipe, key, _ := strings.Cut(member, "/")
	m.set("makings", member, string(text))
	m.set("keys:"+recipe, key, "")
	m.add("counts", recipe+"/keys", 1)
	for _, r := range []*tidemill.Run{making.Live, making.Waiting} {
		if r != nil {
			m.run(r, member)
		}
	}
	for _, id := range making.Ended {
		text, err := json.Marshal(ended[id])
		must(t, err)
		m.run(ended[id], string(text))
	}
	if r, due := making.DueRun(); r != nil {
		ms := due.UnixMilli()
		if due.After(time.UnixMilli(ms)) {
			ms++
		}
		prio := strconv.Itoa(r.Priority)
		m.set("pending", member, fmt.Sprintf("%s %d %d %s", prio, ms, ms, r.ID))
		m.place("queue:"+recipe+":"+prio, []int{6, 14, 22}, ms, member, [3]string{"queue:" + recipe, prio, strconv.Itoa(-r.Priority)}, [3]string{"queue", recipe, "0"})
		m.add("queued", recipe+" "+strconv.FormatInt(ms>>14, 10), 1)
	}
}

func (m model) run(r *tidemill.Run, where string) {
	ms := r.Asking.UnixMilli()
	m.set("runs", r.ID, fmt.Sprintf("%d %s %s", ms, r.State, where))
	m.place("list:"+r.Recipe+":"+string(r.State), []int{16, 26}, ms, r.ID)
	m.add("counts", r.Recipe+"/"+string(r.State), 1)
	switch a := r.Attempt(); {
	case a != nil:
		m.set("live", r.ID, fmt.Sprintf("%d %s %s/%s", a.Number, r.Pool, r.Recipe, r.Key))
		m.add("running", r.Pool, 1)
		m.add("running", r.Pool+"/"+r.Recipe, 1)
		m.add("running", "/"+r.Recipe, 1)
	case r.State == tidemill.RunSettling:
		m.set("live", r.ID, fmt.Sprintf("0 %s %s/%s", r.Pool, r.Recipe, r.Key))
	}
}

// held is all that Redis does hold, but for what a flush may forget.
func (w *world) held() model {
	w.t.Helper()
	ctx, m := w.t.Context(), model{}
	prefix := w.prefix()
	keys, err := w.redis.Keys(ctx, "*").Result()
	must(w.t, err)
	for _, key := range keys {
		name, ours := strings.CutPrefix(key, prefix)
		if !ours || name == "beats" || name == "told" {
			continue
		}
		kind, err := w.redis.Type(ctx, key).Result()
		must(w.t, err)
		switch kind {
		case "hash":
			m[name], err = w.redis.HGetAll(ctx, key).Result()
		case "set":
			var all []string
			all, err = w.redis.SMembers(ctx, key).Result()
			for _, member := range all {
				m.set(name, member, "")
			}
		case "zset":
			all, failed := w.redis.ZRangeWithScores(ctx, key, 0, -1).Result()
			for _, z := range all {
				m.set(name, fmt.Sprint(z.Member), strconv.FormatFloat(z.Score+0, 'f', -1, 64))
			}
			err = failed
		default:
			w.t.Errorf("key %s is a %s", key, kind)
		}
		must(w.t, err)
	}
	return m
}

func (w *world) prefix() string { return w.names.Key("{ledger}", "1", w.kafka, "") }

// same fails the test with the first differences.
func (w *world) same(want model) {
	w.t.Helper()
	got := w.held()
	for _, key := range slices.Sorted(maps.Keys(merged(want, got))) {
		if maps.Equal(want[key], got[key]) || len(want[key])+len(got[key]) == 0 {
			continue
		}
		for _, field := range slices.Sorted(maps.Keys(merged(want[key], got[key]))) {
			if want[key][field] != got[key][field] || (want[key] == nil) != (got[key] == nil) {
				w.t.Errorf("%s[%s]:\n have %q\n want %q", key, field, got[key][field], want[key][field])
			}
		}
		if w.t.Failed() {
			return
		}
	}
}

func merged[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return all
}

// settled waits until Redis has all that is on the log.
func (w *world) settled(through interface{ Changed() <-chan struct{} }) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	ends, err := w.broker.Ends(ctx, tidemill.StreamFacts)
	must(w.t, err)
	for {
		changed := through.Changed()
		at, err := w.redis.HGetAll(ctx, w.prefix()+"at").Result()
		must(w.t, err)
		done := at["ready"] == "1"
		for _, end := range ends {
			n, _ := strconv.ParseInt(at[fmt.Sprint(end.Partition)], 10, 64)
			done = done && n >= end.Offset
		}
		if done {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			w.t.Fatalf("redis is at %v, the log at %v", at, ends)
		}
	}
}
