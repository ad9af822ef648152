package ledger_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

// model is the expected content of Redis: key → field or member → value or score. It is
// computed by a simple fold of the log, one fact at a time.
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

// plainFold is the result of a simple fold of the log, one fact at a time.
type plainFold struct {
	makings map[string]*fold.Making
	ended   map[string]*tidemill.Run
	models  map[string]*plainModel
	ends    map[int32]int64
}

// foldLog folds all facts on the log.
func (w *world) foldLog() *plainFold {
	w.t.Helper()
	all := &plainFold{map[string]*fold.Making{}, map[string]*tidemill.Run{}, map[string]*plainModel{}, map[int32]int64{}}
	ends, err := w.broker.Ends(w.t.Context(), tidemill.StreamFacts)
	must(w.t, err)
	for _, end := range ends {
		all.ends[end.Partition] = end.Offset
		for at := (broker.Position{Stream: tidemill.StreamFacts, Partition: end.Partition}); at.Offset < end.Offset; {
			at.Offset, err = w.broker.Read(w.t.Context(), at, 1<<20, func(e *broker.Incoming) bool {
				all.fold(e, end.Partition)
				return true
			})
			must(w.t, err)
		}
	}
	return all
}

// modelOf returns the expected content of Redis for the log.
func (w *world) modelOf() model {
	w.t.Helper()
	all, m, sum := w.foldLog(), model{}, int64(0)
	for partition, end := range all.ends {
		if sum += end; end > 0 {
			m.set("at", fmt.Sprint(partition), fmt.Sprint(end))
		}
	}
	m.set("at", "sum", fmt.Sprint(sum))
	m.set("at", "ready", "1")
	m.set("at", "partitions", fmt.Sprint(len(all.ends)))
	for member, making := range all.makings {
		m.making(w.t, member, making, all.ended)
		m.keyEntry(member, making, broker.PartitionOf([]byte(member), len(all.ends)))
	}
	for name, of := range all.models {
		m.model(w.t, name, of)
	}
	for _, of := range []string{"counts", "running", "queued"} {
		maps.DeleteFunc(m[of], func(_, n string) bool { return n == "0" })
	}
	return m
}

func (p *plainFold) fold(e *broker.Incoming, partition int32) {
	v := e.View.Clone()
	if e.Err != nil {
		return
	}
	recipe, _ := v.Attribute(tidemill.AttrRecipe)
	run, _ := v.Attribute(tidemill.AttrRun)
	by, _ := v.Attribute(tidemill.AttrAuthID)
	at, err := time.Parse(time.RFC3339Nano, v.Time)
	if err != nil {
		at = e.Time
	}
	f := fold.Fact{Partition: partition, Offset: e.Offset, ID: v.ID, Type: v.Type, Recipe: recipe, Key: v.Subject,
		Run: run, By: by, At: at.UTC(), Data: v.Data}
	if strings.HasPrefix(e.Type, "tidemill.model.") {
		f.Recipe = ""
		f.Model, _ = v.Attribute(tidemill.AttrModel)
		if f.Model != "" && string(e.Key) == f.Model {
			p.foldModel(f)
		}
		return
	}
	member := recipe + "/" + v.Subject
	if !strings.HasPrefix(e.Type, "tidemill.run.") || string(e.Key) != member {
		return
	}
	if p.makings[member] == nil {
		p.makings[member] = &fold.Making{}
	}
	verdict := p.makings[member].Apply(f)
	if r := verdict.Ended; r != nil {
		p.ended[r.ID] = r
	}
	for _, id := range verdict.Forgotten {
		delete(p.ended, id)
	}
}

func (m model) making(t testing.TB, member string, making *fold.Making, ended map[string]*tidemill.Run) {
	text, err := json.Marshal(making)
	must(t, err)
	recipe, key, _ := strings.Cut(member, "/")
	m.set("makings", member, string(text))
	if !making.Gone || making.Live != nil || making.Waiting != nil {
		m.set("keys:"+recipe, key, "")
		m.add("counts", recipe+"/keys", 1)
	}
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

// keyEntry sets the entry in the list of keys.
func (m model) keyEntry(member string, making *fold.Making, partition int32) {
	if making.Gone && making.Live == nil && making.Waiting == nil {
		return
	}
	running, last, failed := "-", "", int64(0)
	if making.Live != nil || making.Waiting != nil {
		running = "r"
	}
	if e := making.Last; e != nil {
		if last = string(e.State); e.State == tidemill.RunFailed {
			failed = e.At
		}
	}
	list := fmt.Sprint("keyentries:", partition)
	m.add("lengths", list, 1)
	m.set(list, member, fmt.Sprint(running, " ", last, " ", failed))
}

func (m model) run(r *tidemill.Run, where string) {
	ms := r.Asking.UnixMilli()
	var from []string
	for _, at := range append([]string{"event/" + url.QueryEscape(r.First.ID), "event/" + url.QueryEscape(r.Newest.ID)}, prefixed("commit/", r.From)...) {
		if !slices.Contains(from, at) {
			from = append(from, at)
			m.link(at, r.ID)
		}
	}
	m.set("runs", r.ID, fmt.Sprintf("%d %s %s, %s", ms, r.State, strings.Join(from, ","), where))
	m.place("list:"+r.Recipe+":"+string(r.State), []int{16, 26}, ms, r.ID, [3]string{"lists", r.Recipe + ":" + string(r.State), "0"})
	m.add("counts", r.Recipe+"/"+string(r.State), 1)
	switch a := r.Attempt(); {
	case a != nil:
		m.set("live", r.ID, fmt.Sprintf("%d %s %s/%s", a.Number, r.Pool, r.Recipe, r.Key))
		m.add("running", r.Pool, 1)
		m.add("running", r.Pool+"/"+r.Recipe, 1)
		m.add("running", "/"+r.Recipe, 1)
	case r.State == tidemill.RunCommitting:
		m.set("live", r.ID, fmt.Sprintf("0 %s %s/%s", r.Pool, r.Recipe, r.Key))
	}
}

// link adds a link. The log alone does not decide the order of a thing's links, because they
// follow from facts of several partitions. So model sorts them.
func (m model) link(from, to string) {
	m.set("links", from, inOrder(m["links"][from]+" "+to))
}

func inOrder(words string) string {
	all := strings.Fields(words)
	slices.Sort(all)
	return strings.Join(all, " ")
}

func prefixed(with string, all []string) (more []string) {
	for _, s := range all {
		more = append(more, with+s)
	}
	return more
}

// redisContent returns the content of Redis, without the data that a flush may lose.
func (w *world) redisContent() model {
	w.t.Helper()
	ctx, m := w.t.Context(), model{}
	prefix := w.prefix()
	keys, err := w.redis.Keys(ctx, "*").Result()
	must(w.t, err)
	for _, key := range keys {
		name, ours := strings.CutPrefix(key, prefix)
		if !ours || name == "beats" || name == "told" || strings.HasPrefix(name, "curve:") {
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

func (w *world) prefix() string { return w.names.Key("{ledger}", ledger.Layout, w.kafka, "") }

// checkSame fails the test with the first differences.
func (w *world) checkSame(want model) {
	w.t.Helper()
	got := w.redisContent()
	w.checkSizes(got)
	w.checkStamps(got)
	for from, to := range got["links"] {
		got["links"][from] = inOrder(to)
	}
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

// checkSizes checks the sizes in at, and removes them and the id of the filling from the content.
func (w *world) checkSizes(got model) {
	w.t.Helper()
	if got["at"]["lost"] != "" {
		w.t.Error("Redis is marked as incomplete")
	}
	var sizes []string
	for _, name := range ledger.SizedKeys() {
		sizes = append(sizes, fmt.Sprint(len(got[name])))
	}
	if all := strings.Join(sizes, " "); all != got["at"]["sizes"] {
		w.t.Errorf("the sizes are %s, recorded are %s", all, got["at"]["sizes"])
	}
	maps.DeleteFunc(got["at"], func(field, _ string) bool { return strings.HasPrefix(field, "last:") })
	delete(got["at"], "sizes")
	delete(got["at"], "fill")
}

// checkStamps checks the offsets in the hash listed, and removes them from the content, because
// they depend on the batches.
func (w *world) checkStamps(got model) {
	w.t.Helper()
	for key := range got {
		kind, partition, is := strings.Cut(key, "entries:")
		changed, err := strconv.Atoi(got[kind+"listed"][partition])
		if at, _ := strconv.Atoi(got["at"][partition]); is && (err != nil || changed > at) {
			w.t.Errorf("the entries of partition %s, which is at %s, have changed at %q", partition, got["at"][partition], got["listed"][partition])
		}
	}
	delete(got, "listed")
	delete(got, "keylisted")
}

func merged[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return all
}

// waitSettled waits until Redis has all facts on the log.
func (w *world) waitSettled(through interface{ Changed() <-chan struct{} }) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	ends, err := w.broker.Ends(ctx, tidemill.StreamFacts)
	must(w.t, err)
	for {
		changed := through.Changed() // read first, so that no change is missed
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
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			w.t.Fatalf("redis is at %v, the log at %v", at, ends)
		}
	}
}
