package score

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/deadletters"
)

// batchOf returns events of several keys in turn.
func batchOf(from, n, keys int) []broker.View {
	all := make([]broker.View, n)
	for i := range all {
		all[i] = message(fmt.Sprint("bot-", (from+i)%keys), from+i)
	}
	return all
}

func (w *world) bots(n int) {
	w.Helper()
	for i := range n {
		w.first(fmt.Sprint("m/bot-", i))
	}
}

func TestEventsAreScored(t *testing.T) {
	for _, c := range []struct {
		what        string
		atLeastOnce bool
	}{{"exactly once", false}, {"at least once", true}} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t, 3)
			w.bots(5)
			w.publish(batchOf(0, 100, 5)...)
			conf := scorer()
			conf.AtLeastOnce = c.atLeastOnce
			p := w.open(conf)
			w.publish(batchOf(100, 900, 5)...)
			w.judge(1000)
			w.poll("the standing tells it", func() bool { at := p.s.Standing(); return at.Scored == 1000 && at.Events == 1000 })
			at := p.s.Standing()
			if at.Events != 1000 || at.Aborted != 0 || at.Skipped != 0 || at.Models != 5 || len(at.Swaps) != 5 || p.s.Check().Status != api.OK {
				t.Errorf("the standing is %+v, the check %+v", at, p.s.Check())
			}
		})
	}
}

// If the scorer has labels, an answer has the values of its event by which its label is found and judged.
func TestOutputsCarryWhatLabelsNeed(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(1)
	long := strings.Repeat("x", maxKey+1)
	var all []broker.View
	for i, data := range []string{`"order":{"id":17},"card":"a\"b"`, `"order":{"id":"` + long + `"},"card":null`, `"card":"a\nb"`} {
		v := message("bot-0", i)
		v.Data = fmt.Appendf(nil, "%s,%s}", strings.TrimSuffix(string(v.Data), "}"), data)
		all = append(all, v)
	}
	w.publish(all...)
	conf := scorer()
	conf.Labels = &config.Labels{From: "labels", Field: "data.order.id", LabelField: "data.order", Truth: "data.truth", Group: "data.card"}
	w.open(conf)
	for i, out := range w.judge(3) {
		field, _ := out.Attribute(tidemill.AttrLabelField)
		group, _ := out.Attribute(tidemill.AttrLabelGroup)
		if want := [][2]string{{"17", `a"b`}, {"", ""}, {"", ""}}[i]; field != want[0] || group != want[1] {
			t.Errorf("answer %d has the field %q and the group %q, want %q", i, field, group, want)
		}
	}
}

// An output copies the attributes that link its event to others.
func TestOutputsCarryTheirChain(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(1)
	v := message("bot-0", 1)
	v.Key = []byte("other")
	v.Extensions = []broker.Attribute{{Name: tidemill.AttrCorrelationID, Value: "chain"}, {Name: tidemill.AttrTraceParent, Value: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		{Name: tidemill.AttrHops, Value: "3"}, {Name: "shop", Value: "x"}}
	w.publish(v)
	w.open(scorer())
	out := w.judge(1)[0]
	for name, want := range map[string]string{tidemill.AttrCorrelationID: "chain", tidemill.AttrTraceParent: v.Extensions[1].Value, tidemill.AttrHops: "3", "shop": ""} {
		if got, _ := out.Attribute(name); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
	if out.Source != "/tidemill/prod/scorer/s" || out.DataSchema != tidemill.Schema(tidemill.TypeScored) || string(out.Key) != "other" {
		t.Errorf("it is %+v", out)
	}
}

// A swap names its first offset, and no event after that offset was scored by an older version.
func TestChampionsChangeUnderLoad(t *testing.T) {
	w := newWorld(t, 2)
	w.bots(4)
	p := w.open(scorer())
	n, until := 0, make(chan int)
	stop, halt := context.WithCancel(t.Context())
	go func() {
		sent := 0
		for ; stop.Err() == nil; sent += 40 {
			w.publish(batchOf(sent, 40, 4)...)
		}
		until <- sent
	}()
	w.poll("version 1 scores", func() bool { return strings.Contains(fmt.Sprint(p.s.Standing().Swaps), "m/bot-1 0 1") })
	for version := 2; version <= 6; version++ {
		w.register("m/bot-1", version)
		w.promote("m/bot-1", version, version-1, int64(version-1))
		w.poll(fmt.Sprint("version ", version, " scores"), func() bool {
			return strings.Contains(fmt.Sprint(p.s.Standing().Swaps), fmt.Sprintf("m/bot-1 %d %d", version-1, version))
		})
	}
	halt()
	n = <-until
	outputs := w.judge(n)
	if got := countByVersion(outputs, "m/bot-1"); len(got) != 6 {
		t.Errorf("the versions have scored %v", got)
	}
	w.swapsAreTold(outputs, 4+5)
}

// swapsAreTold compares the events about swaps with the outputs.
func (w *world) swapsAreTold(outputs []scoredEvent, n int) {
	w.Helper()
	first := map[string]int64{}
	for _, out := range outputs {
		model, _ := out.Attribute(tidemill.AttrModel)
		version, _ := out.Attribute(tidemill.AttrModelVersion)
		key := fmt.Sprint(model, version, out.at.Partition)
		if at, known := first[key]; !known || offsetOf(out.ID) < at {
			first[key] = offsetOf(out.ID)
		}
	}
	told := map[string]int64{}
	for _, e := range w.outputs(tidemill.StreamProgress) {
		var data tidemill.ScorerSwappedData
		w.must(json.Unmarshal(e.Data, &data))
		model, _ := e.Attribute(tidemill.AttrModel)
		version, _ := e.Attribute(tidemill.AttrModelVersion)
		told[fmt.Sprint(model, version, data.Partition)] = data.Offset
		if e.Type != tidemill.TypeScorerSwapped || data.Stream != streamIn || data.Scorer != "s" || string(e.Key) != model {
			w.Errorf("a swap is reported as %+v, %+v", e.View, data)
		}
	}
	if len(told) != n || len(first) != n {
		w.Errorf("%d swaps are reported, and there were %d; want %d", len(told), len(first), n)
	}
	for key, at := range first {
		if told[key] != at {
			w.Errorf("%s begins at offset %d, and the swap says %d", key, at, told[key])
		}
	}
}

func TestEventsWithoutAModel(t *testing.T) {
	for _, c := range []struct {
		action              config.NoModelAction
		out, dead           int
		passed, drop, model bool
	}{
		{action: config.NoModelDeadLetter, dead: 1},
		{action: config.NoModelDrop, drop: true},
		{action: config.NoModelPass, out: 1, passed: true},
		{action: config.NoModelUse, out: 1, model: true},
	} {
		t.Run(string(c.action), func(t *testing.T) {
			w := newWorld(t, 1)
			w.bots(1)
			conf := scorer()
			conf.NoModel = config.NoModel{Action: c.action, Model: "m/bot-0"}
			p := w.open(conf)
			w.publish(message("stranger", 1), message("bot-0", 2))
			outputs := w.waitEvents(streamOut, 1+c.out)
			w.poll("both are dealt with", func() bool { return p.s.Standing().Events == 2 })
			slices.SortFunc(outputs, func(a, b scoredEvent) int { return -strings.Compare(a.Subject, b.Subject) }) // sorts the stranger first
			if c.passed && (outputs[0].ID != "stranger-1" || outputs[0].Type != "message" || outputs[0].Source != "/crm") {
				t.Errorf("it went on as %+v", outputs[0])
			}
			if model, _ := outputs[0].Attribute(tidemill.AttrModel); c.model && (model != "m/bot-0" || outputs[0].Subject != "stranger") {
				t.Errorf("model %s answered", model)
			}
			at := p.s.Standing()
			if at.Models != 1 {
				t.Errorf("%d models are in use; the stranger has none", at.Models)
			}
			if dead := w.outputs(tidemill.StreamDeadLetters); len(dead) != c.dead || int(at.DeadLettered) != c.dead || (at.Dropped == 1) != c.drop || (at.Passed == 1) != c.passed {
				t.Errorf("%d dead letters; the standing is %+v", len(dead), at)
			}
		})
	}
}

// An event that cannot be scored becomes a dead letter with the reason. Other events are not
// affected.
func TestEventsThatCannotBeScored(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(1)
	bad := []broker.View{message("bot-0", 1), message("bot-0", 2), message("", 3), message("a/../b", 4)}
	bad[0].Data = []byte(`{"x":[1,2]}`)
	bad[1].Data = []byte(`{"y":1}`)
	w.publish(bad...)
	w.publish(message("bot-0", 5))
	p := w.open(scorer())
	w.waitEvents(streamOut, 1)
	w.poll("all are dealt with", func() bool { return p.s.Standing().Events == 5 })
	dead := w.outputs(tidemill.StreamDeadLetters)
	if len(dead) != 4 {
		t.Fatalf("%d dead letters", len(dead))
	}
	for _, d := range dead {
		if who, _ := d.Attribute(tidemill.AttrScorer); who != "s" || d.Source != w.names.Source("scorer/s") {
			t.Errorf("a letter is %s's, from %s", who, d.Source)
		}
		l, err := deadletters.Read(&d.View)
		w.must(err)
		original, err := l.Original()
		w.must(err)
		n, err := strconv.Atoi(original.ID[strings.LastIndex(original.ID, "-")+1:])
		w.must(err)
		if want := bad[n-1]; l.Reason == "" || l.Stream != streamIn || l.Offset != int64(n-1) || l.Group != Group("s") || string(original.Data) != string(want.Data) || l.Scorer != "s" || l.Trigger != "" {
			t.Errorf("the letter of event %d is %+v", n, l)
		}
	}
}

// A scorer scores only the listed types, and Tidemill's own types only if they are listed.
func TestTypes(t *testing.T) {
	for _, c := range []struct {
		types []string
		typ   string
		is    bool
	}{{nil, "message", true}, {nil, "tidemill.scored", false}, {[]string{"a", "b"}, "b", true}, {[]string{"a", "b"}, "c", false}, {[]string{"tidemill.scored"}, "tidemill.scored", true}} {
		s := &session{Scorer: &Scorer{conf: config.Scorer{Types: c.types}}}
		if got := selects(s.conf.Types, c.typ); got != c.is {
			t.Errorf("of %v, %s: %v", c.types, c.typ, got)
		}
	}
}

// A model that is loading delays only its own keys.
func TestOneLoadingModelHoldsUpNoOther(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(2)
	slow := make(chan struct{})
	p := &process{w: w, fetch: func(artifact string) error {
		if artifact == artifactOf("m/bot-1", 1) {
			<-slow
		}
		return nil
	}}
	conf := scorer()
	conf.Hold = patience
	p.start(conf)
	w.publish(batchOf(0, 40, 2)...)
	w.waitEvents(streamOut, 20)
	w.publish(batchOf(40, 40, 2)...)
	outputs := w.waitEvents(streamOut, 40)
	if got := countByVersion(outputs, "m/bot-1"); len(got) != 0 {
		t.Errorf("before it is there it has scored %v", got)
	}
	close(slow)
	w.judge(80)
}

func TestOnce(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(1)
	p := w.open(scorer())
	v := message("bot-0", 1)
	r, err := Once(t.Context(), scorer(), p.m, &v)
	if err != nil || r.Model != "m/bot-0" || r.Version != 1 || r.Label == "" || len(r.Scores) != 3 || r.Score != r.Scores[r.Label] {
		t.Errorf("it says %+v, %v", r, err)
	}
	w.publish(v)
	var streamed Scored
	w.must(json.Unmarshal(w.judge(1)[0].Data, &streamed))
	if fmt.Sprint(streamed) != fmt.Sprint(r.Scored) {
		t.Errorf("once it is %+v, on the stream %+v", r.Scored, streamed)
	}
	v.Subject = "stranger"
	if _, err := Once(t.Context(), scorer(), p.m, &v); !errors.Is(err, ErrNoModel) {
		t.Errorf("of no model it says %v", err)
	}
	v.Subject = ""
	if _, err := Once(t.Context(), scorer(), p.m, &v); !errors.Is(err, ErrUnscorable) || !strings.Contains(err.Error(), "with --key of tidemill score") || strings.Contains(err.Error(), "publish") {
		t.Errorf("of no key it says %v", err)
	}
	v.Subject, v.Data = "bot-0", []byte(`{"x":"text"}`)
	if _, err := Once(t.Context(), scorer(), p.m, &v); err == nil {
		t.Error("data that fits no input is scored")
	}
	c := scorer()
	c.Map = []config.Mapped{{Input: "x", Path: "data.x", Default: "NaN"}}
	v.Data = []byte(`{}`) // the scores are NaN, which is not 0
	if r, err := Once(t.Context(), c, p.m, &v); !errors.Is(err, ErrUnscorable) || !strings.Contains(err.Error(), "NaN or infinity") {
		t.Errorf("of scores that are no numbers it says %+v, %v", r, err)
	}
}

// Once returns the reason if a model cannot be loaded now, and does not wait until the store is
// back.
func TestOnceWhileTheStoreIsAway(t *testing.T) {
	w := newWorld(t, 1)
	w.first("m/bot-1")
	var store shop
	p := w.impatient(store.refuse(""))
	v := message("bot-1", 1)
	if _, err := Once(t.Context(), scorer(), p.m, &v); !errors.Is(err, errAway) {
		t.Errorf("%v", err)
	}
	store.open()
	w.poll("it answers when the store is back", func() bool {
		_, err := Once(t.Context(), scorer(), p.m, &v)
		return err == nil
	})
}
