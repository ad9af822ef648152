package ledger

import (
	"fmt"
	"slices"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// An own fact is folded before it is read only if it directly follows the folded facts.
func TestOwnFactsThatAreNext(t *testing.T) {
	const there = 10 // all facts before this offset are applied
	read := func(offsets ...int64) *batchPart {
		p := &batchPart{partition: 1, next: offsets[len(offsets)-1] + 1}
		for _, at := range offsets {
			p.facts = append(p.facts, fold.Fact{Partition: 1, Offset: at})
		}
		return p
	}
	for name, c := range map[string]struct {
		read *batchPart
		own  []int64
		want []int64 // offsets of the partition in the batch afterwards
		next int64
	}{
		"the next":                         {nil, []int64{10}, []int64{10}, 11},
		"two, told in the wrong order":     {nil, []int64{11, 10}, []int64{10, 11}, 12},
		"behind another's":                 {nil, []int64{11}, nil, 0},
		"applied already":                  {nil, []int64{9}, nil, 0},
		"behind what was read":             {read(10, 11), []int64{12}, []int64{10, 11, 12}, 13},
		"read already":                     {read(10, 11), []int64{11}, []int64{10, 11}, 12},
		"behind what comes after the read": {read(10, 11), []int64{13}, []int64{10, 11}, 12},
		"behind what was read of a marker": {&batchPart{partition: 1, next: 12}, []int64{12}, []int64{12}, 13},
		"told twice":                       {nil, []int64{10, 10}, []int64{10}, 11},
	} {
		l := &Ledger{progress: newProgress(), memory: newMemory()}
		l.progress.advance(step{partition: 1, next: there}, step{partition: 2, next: there})
		b := &batch{parts: map[int32]*batchPart{}}
		if c.read != nil {
			b.parts[1] = c.read
		}
		for _, at := range c.own {
			l.ownFacts.add(fold.Fact{Partition: 1, Offset: at})
		}
		l.takeOwn(b)
		var got []int64
		next := int64(0)
		if p := b.parts[1]; p != nil {
			next = p.next
			for _, f := range p.facts {
				got = append(got, f.Offset)
			}
		}
		if !slices.Equal(got, c.want) || next != c.next || l.ownFacts.any() {
			t.Errorf("%s: the batch has %v and goes on at %d, want %v, %d; left are %t", name, got, next, c.want, c.next, l.ownFacts.any())
		}
	}
}

// A fact that Kafka returns with changes, such as another time, is left to be read.
func TestWhatIsOffered(t *testing.T) {
	sound := broker.View{ID: "1", Source: "/s", Type: tidemill.TypeRunRequested, Subject: "bot", Key: []byte(tidemill.RunKey("intent", "bot")), Time: "2026-01-02T03:04:05Z",
		Extensions: []broker.Attribute{{Name: tidemill.AttrRecipe, Value: "intent"}, {Name: tidemill.AttrRun, Value: "r"}}, Data: []byte("{}")}
	for name, c := range map[string]struct {
		set  func(*broker.View)
		want bool
	}{
		"a fact":                {func(*broker.View) {}, true},
		"no time":               {func(v *broker.View) { v.Time = "" }, false},
		"a time of no calendar": {func(v *broker.View) { v.Time = "9999-01-01T00:00:00Z" }, false},
		"another's key":         {func(v *broker.View) { v.Key = []byte("other") }, false},
		"no fact of a run":      {func(v *broker.View) { v.Type = "new-data" }, false},
	} {
		l, v := &Ledger{progress: newProgress(), memory: newMemory()}, sound.Clone()
		c.set(&v)
		if l.offer(&v, broker.Position{Partition: 3, Offset: 7}); l.ownFacts.any() != c.want {
			t.Errorf("%s: it is offered: %t", name, !c.want)
		}
		for _, f := range l.ownFacts.take() {
			if got := fmt.Sprintf("%d %d %s %s %s", f.Partition, f.Offset, f.Recipe, f.Key, f.Run); got != "3 7 intent bot r" {
				t.Errorf("%s: the fact is %s", name, got)
			}
		}
	}
}
