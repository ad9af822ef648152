package fleet

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// Input is the name of a network's input, and of the member with the input in an event's data.
const Input = "x"

// Output is the name of a network's output.
const Output = "probabilities"

// Network is the shape of a classifier: Gemm and Relu between the sizes, and Softmax at the end.
type Network []int

// Labels returns the names of the classes.
func (n Network) Labels() []string {
	all := make([]string, n[len(n)-1])
	for i := range all {
		all[i] = fmt.Sprintf("intent-%02d", i)
	}
	return all
}

// File returns the network as an ONNX file, with weights computed from the seed.
func (n Network) File(seed uint64) []byte {
	var graph, opset, labels, model message
	r := source(seed)
	from := Input
	for i := range len(n) - 1 {
		out := fmt.Sprintf("layer%d", i)
		graph.bytes(1, node("Gemm", out, from, "w"+out, "b"+out))
		graph.bytes(5, weights("w"+out, r.raw(n[i]*n[i+1], n.scale(i)), n[i], n[i+1]))
		graph.bytes(5, weights("b"+out, r.raw(n[i+1], n.scale(i)), n[i+1]))
		if from = out; i < len(n)-2 {
			from = "relu" + out
			graph.bytes(1, node("Relu", from, out))
		}
	}
	graph.bytes(1, node("Softmax", Output, from))
	graph.text(2, "fleet").bytes(11, port(Input, n[0])).bytes(12, port(Output, n[len(n)-1]))
	opset.text(1, "").number(2, 13)
	model.number(1, 8).text(2, "tidemill loadtest").bytes(7, graph).bytes(8, opset)
	labels.text(1, "labels").text(2, strings.Join(n.Labels(), ","))
	return *model.bytes(14, labels)
}

// scale keeps a layer's output about as large as its input.
func (n Network) scale(layer int) float32 { return float32(math.Sqrt(6 / float64(n[layer]))) }

// Answers returns the probability of each class for a row, computed in the slowest and plainest
// way.
func (n Network) Answers(seed uint64, row []float32) []float64 {
	r := source(seed)
	x := make([]float64, len(row))
	for i, v := range row {
		x[i] = float64(v)
	}
	for i := range len(n) - 1 {
		w, b := r.floats(n[i]*n[i+1], n.scale(i)), r.floats(n[i+1], n.scale(i))
		y := make([]float64, n[i+1])
		for c := range y {
			y[c] = float64(b[c])
			for k, v := range x {
				y[c] += v * float64(w[k*n[i+1]+c])
			}
			if i < len(n)-2 {
				y[c] = max(0, y[c])
			}
		}
		x = y
	}
	return softmax(x)
}

func softmax(x []float64) []float64 {
	most, sum := math.Inf(-1), 0.0
	for _, v := range x {
		most = max(most, v)
	}
	for i, v := range x {
		x[i] = math.Exp(v - most)
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
	return x
}

// randomSource is a splitmix64, which is fast, because millions of weights are drawn from it.
type randomSource struct{ state uint64 }

func source(seed uint64) *randomSource { return &randomSource{state: seed*0x9e3779b97f4a7c15 + 1} }

func (r *randomSource) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// drawUnit draws evenly from 0 to 1.
func (r *randomSource) drawUnit() float32 { return float32(r.next()>>40) / (1 << 24) }

func (r *randomSource) floats(n int, scale float32) []float32 {
	all := make([]float32, n)
	for i := range all {
		all[i] = (2*r.drawUnit() - 1) * scale
	}
	return all
}

func (r *randomSource) raw(n int, scale float32) []byte {
	raw := make([]byte, 0, 4*n)
	for range n {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits((2*r.drawUnit()-1)*scale))
	}
	return raw
}
