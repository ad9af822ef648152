package main

import (
	"errors"
	"fmt"
	"math"
	"os"

	"tidemill.dev/functions/score"
	"tidemill.dev/internal/scoring/infer/native"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/loadtest/internal/fleet"
)

// oracle evaluates events itself: networks with plain arithmetic, the model of texts with one text
// at a time.
type oracle struct {
	fleet  fleet.Fleet
	bodies []fleet.Body
	labels []string
	text   *native.Program // model of texts
}

// tolerance is the tolerance for sums that were added in another order.
const tolerance = 2e-4

func (w *scoreBench) newOracle() (*oracle, error) {
	o := &oracle{fleet: w.fleet, bodies: w.fleet.Bodies()}
	if w.model == "" {
		o.labels = w.Network.Labels()
		return o, nil
	}
	data, err := os.ReadFile(w.model)
	if err == nil {
		o.text, err = native.Load(data)
	}
	return o, err
}

func (o *oracle) check(d *score.Scored, number, key, version int) error {
	likely, err := o.answers(number, key, version)
	if err != nil {
		return err
	}
	best := 0
	for i, v := range likely {
		if v > likely[best] {
			best = i
		}
	}
	if math.Abs(d.Score-likely[best]) > tolerance {
		return fmt.Errorf("the score is %v and should be %v", d.Score, likely[best])
	}
	for i, label := range o.labels {
		if v, ok := d.Scores[label]; ok && math.Abs(v-likely[i]) > tolerance {
			return fmt.Errorf("the score of %s is %v and should be %v", label, v, likely[i])
		}
		if label == d.Label && likely[best]-likely[i] > tolerance {
			return fmt.Errorf("the label is %s and should be %s", label, o.labels[best])
		}
	}
	if o.labels == nil && d.Label == "" {
		return errors.New("there is no label")
	}
	return nil
}

func (o *oracle) answers(number, key, version int) ([]float64, error) {
	body := &o.bodies[number%len(o.bodies)]
	if o.text == nil {
		return o.fleet.Network.Answers(fleet.Seed(key, version), body.Row), nil
	}
	in := []tensor.Tensor{{Type: tensor.String, Shape: []int{1}, Strings: []string{body.Text}}}
	out := make([]tensor.Tensor, len(o.text.Outputs()))
	if err := o.text.Run(in, out); err != nil {
		return nil, err
	}
	likely := make([]float64, len(out[0].Floats))
	for i, v := range out[0].Floats {
		likely[i] = float64(v)
	}
	return likely, nil
}
