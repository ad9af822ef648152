package score

import (
	"encoding/json"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// swap is the first event of a partition that a version scores.
type swap struct {
	tenure          *tenure
	model           string
	before, version int
	offset          int64
	lost            bool // its tenure has ended
}

// speak finds the versions that score events of a partition for the first time.
// A key whose last event was scored here by the same version says nothing new.
func (s *session) speak(b *batch) {
	for n := range b.groups {
		g := &b.groups[n]
		if g.model == nil {
			continue
		}
		g.ref = g.model.Ref()
		g.version = g.target.textOf(g.ref.Version)
		for _, i := range b.of(g) {
			it := &b.items[i]
			if k := it.key; it.verdict == scored && (it.held != nil || k.tenure != it.turn.tenure || k.version != g.ref.Version || k.model != g.ref.Model) {
				k.tenure, k.version, k.model = it.turn.tenure, g.ref.Version, g.ref.Model
				b.swap(it, k)
			}
		}
	}
}

func (b *batch) swap(it *item, k *keyed) {
	t := it.turn.tenure
	last, known := t.versions[k.model]
	same := known && last.version == k.version
	if same && it.offset >= last.offset { // what was parked comes from before
		return
	}
	if same {
		last.version = 0
	}
	t.versions[k.model] = spoken{k.version, b.seq, it.offset}
	b.swaps = append(b.swaps, swap{tenure: t, model: k.model, before: last.version, version: k.version, offset: it.offset})
}

// textOf is a version as an attribute.
func (t *target) textOf(version int) string {
	if t.text == "" || t.version != version {
		t.version, t.text = version, strconv.Itoa(version)
	}
	return t.text
}

// event is a swap as it is told. Its id follows from what it tells, so whoever
// tells it again tells the same.
func (w *swap) event(names tidemill.Names, scorer, stream string, now time.Time) (broker.View, error) {
	data, err := json.Marshal(tidemill.ScorerSwappedData{Scorer: scorer, Stream: stream, Partition: w.tenure.partition, Offset: w.offset, Before: w.before})
	version := strconv.Itoa(w.version)
	return broker.View{
		ID:     tidemill.ID("swap", scorer, w.model, version, stream, strconv.Itoa(int(w.tenure.partition)), strconv.FormatInt(w.offset, 10)),
		Source: names.Source("scorer/" + scorer), Type: tidemill.TypeScorerSwapped, Time: now.UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json", DataSchema: tidemill.Schema(tidemill.TypeScorerSwapped), Key: []byte(w.model), Data: data,
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: w.model}, {Name: tidemill.AttrModelVersion, Value: version}},
	}, err
}
