package native

import (
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// FuzzLoad loads damaged files and runs those that load. Each run must give an error or an
// answer within its limits.
func FuzzLoad(f *testing.F) {
	for _, file := range seeds() {
		f.Add(file, 2)
		f.Add(file[:len(file)*3/4], 0)
	}
	f.Fuzz(func(t *testing.T, file []byte, rows int) {
		p, err := Load(file)
		if err != nil {
			return
		}
		p.limits = limits{numbers: 1 << 16, products: 1 << 20}
		in, out := fed(p, rows), make([]tensor.Tensor, len(p.Outputs()))
		if err := p.Run(in, out); err != nil {
			return
		}
		for i := range out {
			n, err := elements(out[i].Shape)
			if err != nil || n != length(&out[i]) {
				t.Errorf("output %d is of %v and holds %d: %v", i, out[i].Shape, length(&out[i]), err)
			}
		}
	})
}

// seeds returns small models that together have all operators.
func seeds() [][]byte {
	all := [][]byte{perceptron(1, 8, 4, 2), intents(1, 5, 3), inSteps(intents(2, 3, 2))}
	for _, q := range oddQuestions() {
		all = append(all, q.file)
	}
	for i := range 60 {
		all = append(all, madeUp(newRandom(uint64(i)), i).file)
	}
	return all
}

// fed returns inputs that match a model, with a few rows where the number is open.
func fed(p *Program, rows int) []tensor.Tensor {
	var all []tensor.Tensor
	for _, s := range p.Inputs() {
		x := tensor.Tensor{Type: s.Type}
		n := 1
		for _, side := range s.Shape {
			if side == tensor.Any {
				side = rows & 3
			}
			x.Shape = append(x.Shape, side)
			if n *= side; n > 1<<12 || n < 0 {
				n = 0
			}
		}
		fill(&x, n)
		all = append(all, x)
	}
	return all
}

func fill(x *tensor.Tensor, n int) {
	for i := range n {
		switch x.Type {
		case tensor.Float:
			x.Floats = append(x.Floats, float32(i%7)-2)
		case tensor.Double:
			x.Doubles = append(x.Doubles, float64(i%7)-2)
		case tensor.String:
			x.Strings = append(x.Strings, []string{"w0o", "W7919o w0o", "", "a b C"}[i%4])
		default:
			x.Ints = append(x.Ints, int64(i%5)-1)
		}
	}
}

func newTensors(n int) []tensor.Tensor { return make([]tensor.Tensor, n) }
