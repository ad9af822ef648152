package main

import (
	"tidemill.dev/broker"
	"tidemill.dev/internal/scoring/features"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/task"
)

// measureParsing reads the events' data into tensors on one core, and does nothing else.
func measureParsing(t inferTask) (r task.Result, err error) {
	spec := tensor.Spec{Name: "text", Type: tensor.String, Shape: []int{tensor.Any}}
	if t.Fleet.Kind != fleet.KindText {
		spec = tensor.Spec{Name: fleet.Input, Type: tensor.Float, Shape: []int{tensor.Any, t.Fleet.Network[0]}}
	}
	plan, err := features.New(nil, []tensor.Spec{spec})
	if err != nil {
		return r, err
	}
	p := &parser{plan: plan, in: make([]tensor.Tensor, 1), bodies: t.Fleet.Bodies()}
	if err := p.parse(t.Warm, t.Batch); err != nil {
		return r, err
	}
	var m task.Meter
	meter := task.Task{Do: engineParse, Profile: t.Profile, Records: t.Records}
	if err := m.Start(meter); err != nil {
		return r, err
	}
	if err := p.parse(t.Records, t.Batch); err != nil {
		return r, err
	}
	return m.Stop(meter)
}

type parser struct {
	plan   *features.Plan
	in     []tensor.Tensor
	bodies []fleet.Body
}

func (p *parser) parse(n, batch int) error {
	var v broker.View
	for done := 0; done < n; done += batch {
		p.plan.Begin(p.in, batch)
		for row := range batch {
			v.Data = p.bodies[(done+row)%len(p.bodies)].Data
			if err := p.plan.Read(&v, p.in, row); err != nil {
				return err
			}
		}
		p.plan.End(p.in, batch)
	}
	return nil
}
