package jsontensor

import (
	"math/rand/v2"
	"strconv"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// BenchmarkValues reads a list of 512 numbers, as clients write them.
func BenchmarkValues(b *testing.B) {
	for _, c := range []struct {
		name string
		one  func(r *rand.Rand) string
	}{
		{"digits", func(r *rand.Rand) string { return strconv.Itoa(r.IntN(10)) }},
		{"decimals", func(r *rand.Rand) string { return strconv.FormatFloat(r.Float64(), 'f', 4, 64) }},
		{"float32", func(r *rand.Rand) string { return strconv.FormatFloat(float64(r.Float32()), 'g', -1, 32) }},
		{"float64", func(r *rand.Rand) string { return strconv.FormatFloat(r.Float64(), 'g', -1, 64) }},
		{"normal", func(r *rand.Rand) string { return strconv.FormatFloat(10*r.NormFloat64(), 'g', -1, 64) }},
	} {
		text := []byte{'['}
		r := rand.New(rand.NewPCG(1, 2))
		const n = 512
		for range n {
			text = append(append(text, c.one(r)...), ',')
		}
		text[len(text)-1] = ']'
		for _, typ := range []tensor.Type{tensor.Float, tensor.Double} {
			t := &tensor.Tensor{Type: typ}
			t.Resize(n)
			b.Run(c.name+"/"+map[tensor.Type]string{tensor.Float: "float32", tensor.Double: "float64"}[typ], func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					if read, _ := Values(text, 1, t, 0, n); read != n {
						b.Fatal(read)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/number")
			})
		}
	}
}
