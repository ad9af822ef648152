package score

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
	"tidemill.dev/config"
	"tidemill.dev/internal/scoring/features"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/serving"
)

// resolve finds, once a batch, which version of each model answers. A version that
// changes meanwhile counts from the next batch on: that is how versions are swapped.
//
// The places among the facts are read after that. Every version was known at these
// places or earlier, so a successor that waits for them cannot know an older version.
func (s *session) resolve(b *batch) {
	for i := range len(b.groups) { // canaries add groups
		g := &b.groups[i]
		s.findModel(g)
		if g.model == nil {
			s.setVerdict(b, g)
			continue
		}
		s.splitCanary(b, i)
	}
	if places := s.o.Champions.Places(); !slices.Equal(places, s.places) {
		s.places, s.facts = places, factsText(places)
	}
	b.facts = s.facts
	s.unkeep()
}

// findModel finds the model of a group. If the group has no model, it sets the verdict of the
// group's items.
func (s *session) findModel(g *group) {
	slot, m, state := s.find(g.target)
	switch state {
	case serving.Missing:
		s.setMissing(g)
	case serving.Loading:
		g.does = waiting
		s.watch(g.target, slot)
	case serving.Broken:
		g.does, g.reason = dead, fmt.Errorf("%w: %w", errUnloadable, slot.Err())
	default:
		s.ready(g, m)
	}
}

// ready finds the plan for reading events for a model.
func (s *session) ready(g *group, m *infer.Model) {
	if g.plan, g.reason = s.plans.planFor(m); g.reason != nil {
		m.Release()
		g.does = dead
		return
	}
	g.model = m
}

// find returns the version that answers for a model now. That version may belong to the model that
// noModel names. A model that is away counts as loading.
func (s *session) find(t *target) (*serving.Slot, *infer.Model, serving.State) {
	if t.isAway() {
		return nil, nil, serving.Loading
	}
	slot, m, state := s.use(t)
	if state == serving.Missing && s.conf.NoModel.Action == config.NoModelUse {
		slot, m, state = s.use(s.cache.target(s.conf.NoModel.Model))
	}
	if state == serving.Loading {
		if m = s.keptModel(t); m != nil {
			state = serving.Ready
		}
	}
	return slot, m, state
}

// use returns the version of a model that answers now. It checks the champions first,
// because a slot is never removed and an event may name any model.
func (s *session) use(t *target) (*serving.Slot, *infer.Model, serving.State) {
	if t.slot == nil {
		if _, ok := s.o.Champions.Champion(t.name); !ok {
			return nil, nil, serving.Missing
		}
		t.slot = s.o.Models.Slot(t.name)
		s.cache.slots++
	}
	m, state := t.slot.Use()
	return t.slot, m, state
}

var errUnloadable = errors.New("its model cannot be loaded")

// mostSent is the size limit of an output. Kafka would refuse a larger one, and with it
// the whole transaction, again and again.
const mostSent = 1<<20 - 64<<10

var errTooLarge = errors.New("its output is too large for a stream; if the model has that many scores, set the scorer's top")

// setMissing sets the verdict for events whose model has no champion.
func (s *session) setMissing(g *group) {
	switch s.conf.NoModel.Action {
	case config.NoModelDrop:
		g.does = dropped
	case config.NoModelPass:
		g.does = passed
	case config.NoModelUse:
		g.does, g.reason = dead, fmt.Errorf("neither model %s nor %s, which noModel names, has a champion", g.target.name, s.conf.NoModel.Model)
	default:
		g.does, g.reason = dead, fmt.Errorf("model %s has no champion", g.target.name)
	}
}

// setVerdict sets the verdict for the items of a group that is not scored.
func (s *session) setVerdict(b *batch, g *group) {
	if g.does == waiting {
		s.parkLate(b, g.target, b.itemsOf(g), false)
		return
	}
	for _, i := range b.itemsOf(g) {
		it := &b.items[i]
		if it.verdict, it.reason = g.does, g.reason; it.verdict == passed && parked.Size(it.v) > mostSent {
			it.verdict, it.reason = dead, errTooLarge
		}
	}
}

// plan says how events are read for models with the same inputs.
type plan struct {
	inputs []tensor.Spec
	*features.Plan
}

// plans are the plans in use. Models of one recipe have the same inputs, so there are few.
type plans struct {
	fields []features.Field
	all    []*plan
}

const mostPlans = 64

func fieldsOf(c *config.Scorer) []features.Field {
	fields := make([]features.Field, len(c.Map))
	for i, m := range c.Map {
		fields[i] = features.Field{Input: m.Input, Path: m.Path, Default: m.Default}
	}
	return fields
}

// planFor returns the plan for a model.
func (p *plans) planFor(m *infer.Model) (*plan, error) {
	inputs := m.Inputs()
	for _, one := range p.all {
		if slices.EqualFunc(one.inputs, inputs, sameInput) {
			return one, nil
		}
	}
	made, err := features.New(p.fields, inputs)
	if err != nil {
		return nil, fmt.Errorf("model %s, version %d: %w", m.Ref().Model, m.Ref().Version, err)
	}
	if len(p.all) == mostPlans {
		p.all = nil
	}
	one := &plan{inputs, made}
	p.all = append(p.all, one)
	return one, nil
}

func sameInput(a, b tensor.Spec) bool {
	return a.Name == b.Name && a.Type == b.Type && slices.Equal(a.Shape, b.Shape)
}

// swap is the first event of a partition that a version scores.
type swap struct {
	assignment      *assignment
	model           string
	before, version int
	offset          int64
	lost            bool // whether its assignment has ended
}

// findSwaps finds the versions that score events of a partition for the first time. A key
// whose last event was scored here by the same version needs no check.
func (s *session) findSwaps(b *batch) {
	for n := range b.groups {
		g := &b.groups[n]
		if g.model == nil {
			continue
		}
		g.ref = g.model.Ref()
		g.version = g.target.textOf(g.ref.Version)
		if g.canary { // its answers alternate with those of the champion: these are no swaps
			continue
		}
		for _, i := range b.itemsOf(g) {
			it := &b.items[i]
			if k := it.key; it.verdict == scored && (it.held != nil || k.assignment != it.delivery.of || k.version != g.ref.Version || k.model != g.ref.Model) {
				k.assignment, k.version, k.model = it.delivery.of, g.ref.Version, g.ref.Model
				b.swap(it, k)
			}
		}
	}
}

func (b *batch) swap(it *item, k *keyEntry) {
	t := it.delivery.of
	last, known := t.versions[k.model]
	same := known && last.version == k.version
	if same && it.offset >= last.offset { // a parked event may be from before
		return
	}
	if same {
		last.version = 0
	}
	t.versions[k.model] = usedVersion{k.version, b.seq, it.offset}
	b.swaps = append(b.swaps, swap{assignment: t, model: k.model, before: last.version, version: k.version, offset: it.offset})
}

// textOf returns a version as an attribute.
func (t *target) textOf(version int) string {
	if t.text == "" || t.version != version {
		t.version, t.text = version, strconv.Itoa(version)
	}
	return t.text
}

// event returns a swap as an event. Its id derives from its content, so a repeated one
// has the same id.
func (w *swap) event(names tidemill.Names, scorer, stream string, now time.Time) (broker.View, error) {
	data, err := json.Marshal(tidemill.ScorerSwappedData{Scorer: scorer, Stream: stream, Partition: w.assignment.partition, Offset: w.offset, Before: w.before})
	version := strconv.Itoa(w.version)
	return broker.View{
		ID:     tidemill.ID("swap", scorer, w.model, version, stream, strconv.Itoa(int(w.assignment.partition)), strconv.FormatInt(w.offset, 10)),
		Source: names.Source("scorer/" + scorer), Type: tidemill.TypeScorerSwapped, Time: now.UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json", DataSchema: tidemill.Schema(tidemill.TypeScorerSwapped), Key: []byte(w.model), Data: data,
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: w.model}, {Name: tidemill.AttrModelVersion, Value: version}},
	}, err
}
