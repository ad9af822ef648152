package score

import (
	"fmt"
	"slices"

	"tidemill.dev/config"
	"tidemill.dev/internal/infer"
	"tidemill.dev/internal/infer/tensor"
	"tidemill.dev/internal/pick"
)

// plan is how events are read for models of the same inputs.
type plan struct {
	inputs []tensor.Spec
	*pick.Plan
}

// plans are those that were needed. Models of one recipe have the same inputs, so
// there are few.
type plans struct {
	fields []pick.Field
	all    []*plan
}

const mostPlans = 64

func fieldsOf(c *config.Scorer) []pick.Field {
	fields := make([]pick.Field, len(c.Map))
	for i, m := range c.Map {
		fields[i] = pick.Field{Input: m.Input, Path: m.Path}
	}
	return fields
}

// of is the plan for a model.
func (p *plans) of(m *infer.Model) (*plan, error) {
	inputs := m.Inputs()
	for _, one := range p.all {
		if slices.EqualFunc(one.inputs, inputs, sameInput) {
			return one, nil
		}
	}
	made, err := pick.New(p.fields, inputs)
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
