package features

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"tidemill.dev/broker"
	"tidemill.dev/internal/scoring/infer/tensor"
)

func seeded(n uint64) *rand.Rand { return rand.New(rand.NewPCG(n, n)) }

func listOf(n int, separator string, one func(*rand.Rand) string) string {
	r := seeded(1)
	parts := make([]string, n)
	for i := range parts {
		parts[i] = one(r)
	}
	return "[" + strings.Join(parts, separator) + "]"
}

func digit(r *rand.Rand) string    { return strconv.Itoa(r.IntN(10)) }
func decimal4(r *rand.Rand) string { return fmt.Sprintf("%.4f", r.Float64()) }
func java(r *rand.Rand) string     { return strconv.FormatFloat(r.Float64(), 'g', -1, 32) }
func python(r *rand.Rand) string   { return strconv.FormatFloat(r.Float64(), 'g', -1, 64) }

// BenchmarkRead reads an event. For comparison, it decodes the same event with encoding/json
// and sums its bytes.
func BenchmarkRead(b *testing.B) {
	for _, c := range []struct {
		name, data, path string
		spec             tensor.Spec
	}{
		{"512digits", `{"x":` + listOf(512, ",", digit) + `}`, "data.x", spec("x", tensor.Float, 512)},
		{"512digits+spaces", `{"x": ` + listOf(512, ", ", digit) + `}`, "data.x", spec("x", tensor.Float, 512)},
		{"784decimals", `{"x":` + listOf(784, ",", decimal4) + `}`, "data.x", spec("x", tensor.Float, 784)},
		{"784decimals+spaces", `{"x": ` + listOf(784, ", ", decimal4) + `}`, "data.x", spec("x", tensor.Float, 784)},
		{"784doubles", `{"x":` + listOf(784, ",", python) + `}`, "data.x", spec("x", tensor.Float, 784)},
		{"784java", `{"x":` + listOf(784, ",", java) + `}`, "data.x", spec("x", tensor.Float, 784)},
		{"text", `{"user":{"id":17,"name":"somebody"},"tags":["a","b"],"text":"where is the parcel that I have ordered?","lang":"en"}`, "data.text", spec("x", tensor.String, 1)},
		{"skipped1k", `{"text":"hi","other":"` + strings.Repeat("abcdefgh ", 110) + `"}`, "data.text", spec("x", tensor.String, 1)},
	} {
		v := event(c.data)
		b.Run(c.name+"/pick", func(b *testing.B) {
			p := mustPlan(b, []Field{{Path: c.path}}, c.spec)
			in := make([]tensor.Tensor, 1)
			b.SetBytes(int64(len(c.data)))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%64 == 0 {
					p.Begin(in, 64)
				}
				if err := p.Read(v, in, i%64); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(c.name+"/json", func(b *testing.B) { decodeAll(b, v, c.spec) })
		b.Run(c.name+"/scan", func(b *testing.B) {
			b.SetBytes(int64(len(c.data)))
			var sum byte
			for b.Loop() {
				sum += scan(v.Data)
			}
			_ = sum
		})
	}
}

//go:noinline
func scan(data []byte) (sum byte) {
	for _, x := range data {
		sum ^= x
	}
	return sum
}

func decodeAll(b *testing.B, v *broker.View, s tensor.Spec) {
	b.SetBytes(int64(len(v.Data)))
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if s.Type == tensor.String {
			var to struct{ Text string }
			err = json.Unmarshal(v.Data, &to)
		} else {
			var to struct{ X []float32 }
			err = json.Unmarshal(v.Data, &to)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
