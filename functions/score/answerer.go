package score

import (
	"errors"
	"fmt"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/scoring/infer"
)

// Answerer answers single events with one model, as a scorer does, and writes nothing. One goroutine uses it.
type Answerer struct {
	m *infer.Model
	b batch
	w worker
}

// errNoLabel reports that a model is not a classifier.
var errNoLabel = errors.New("its answer has no label")

// NewAnswerer returns an Answerer for a scorer's events. The caller releases the model after the last answer.
func NewAnswerer(c *config.Scorer, m *infer.Model) (*Answerer, error) {
	p := plans{fields: fieldsOf(c)}
	plan, err := p.planFor(m)
	if err != nil {
		return nil, err
	}
	a := &Answerer{m: m}
	a.b.groups = []group{{target: &target{}, model: m, plan: plan}}
	a.b.items = make([]item, 1)
	return a, nil
}

// Label returns the label of the answer to an event. The error is [infer.ErrAway] if another try may succeed.
func (a *Answerer) Label(v *broker.View) (string, error) {
	a.b.items[0] = item{v: v}
	a.w.read(&a.b, &a.b.groups[0], []int32{0})
	if it := &a.b.items[0]; it.verdict == dead {
		return "", it.reason
	}
	if err := a.w.runModel(a.m); err != nil {
		return "", fmt.Errorf("model %s, version %d: %w", a.m.Ref().Model, a.m.Ref().Version, err)
	}
	answer := a.m.Answer(a.w.out, 0)
	if answer.Label == "" {
		return "", errNoLabel
	}
	return answer.Label, nil
}
