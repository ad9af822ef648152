package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkNetwork measures one inference of a network of 512→64→20 in the cache, for several
// batch sizes.
func BenchmarkNetwork(b *testing.B) {
	for _, on := range variants() {
		for _, m := range []int{1, 2, 4, 8, 32, 256} {
			b.Run(fmt.Sprintf("%s/%d", on, m), func(b *testing.B) {
				r := rand.New(rand.NewPCG(1, 2))
				n := newNetwork(r, on)
				x, h, y := random(r, m*512), make([]float32, m*64), make([]float32, m*20)
				for b.Loop() {
					n.answer(m, x, h, y)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*m), "ns/row")
			})
		}
	}
}

// BenchmarkManyNetworks does the same with 2,000 networks in turn, so that weights come from
// memory.
func BenchmarkManyNetworks(b *testing.B) {
	for _, m := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprint(m), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			all := make([]*network, 2000)
			for i := range all {
				all[i] = newNetwork(r, best)
			}
			order := r.Perm(len(all))
			x, h, y := random(r, m*512), make([]float32, m*64), make([]float32, m*20)
			for i := 0; b.Loop(); i++ {
				all[order[i%len(all)]].answer(m, x, h, y)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*m), "ns/row")
		})
	}
}

type network struct {
	one, two   *Weights
	bias, last []float32
	on         variant
}

func newNetwork(r *rand.Rand, on variant) *network {
	return &network{
		one: pack(on, 512, 64, random(r, 512*64)), bias: random(r, 64),
		two: pack(on, 64, 20, random(r, 64*20)), last: random(r, 20), on: on,
	}
}

func (n *network) answer(m int, x, h, y []float32) {
	n.one.Multiply(m, x, n.bias, Relu, h)
	n.two.Multiply(m, h, n.last, None, y)
	softmax(n.on, m, 20, y)
}

// BenchmarkSparse measures the first layer for a text of 12 words.
func BenchmarkSparse(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	w := Pack(4096, 64, random(r, 4096*64))
	index, value, y := make([]int32, 12), random(r, 12), make([]float32, 64)
	for b.Loop() {
		for i := range index {
			index[i] = int32(r.IntN(4096))
		}
		w.MultiplySparse(index, value, nil, Relu, y)
	}
}
