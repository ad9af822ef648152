package native

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"tidemill.dev/internal/scoring/infer/tensor"
)

func load(t testing.TB, file []byte) *Program {
	t.Helper()
	p, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// perInference reports the time of one row.
func perInference(b *testing.B, p func(i int) *Program, in *tensor.Tensor) {
	b.Helper()
	given, out := []tensor.Tensor{*in}, make([]tensor.Tensor, 1)
	if err := p(0).Run(given, out); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	i, begin := 0, used(b)
	for b.Loop() {
		if err := p(i).Run(given, out); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.ReportMetric(float64((used(b)-begin).Nanoseconds())/float64(b.N)/float64(in.Shape[0]), "cpu-ns/inference")
}

// used returns the processor time of this process, because the wall clock includes other processes.
func used(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkHot runs one model of 512→64→20 again and again.
func BenchmarkHot(b *testing.B) {
	p := load(b, perceptron(1, 512, 64, 20))
	for _, rows := range []int{1, 8, 32, 256} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			perInference(b, func(int) *Program { return p }, random(rand.New(rand.NewPCG(1, 1)), rows, 512))
		})
	}
}

// BenchmarkCall measures the cost of a call besides its products.
func BenchmarkCall(b *testing.B) {
	p := load(b, perceptron(1, 4, 2))
	perInference(b, func(int) *Program { return p }, random(newRandom(1), 1, 4))
}

// BenchmarkHotCounts is BenchmarkHot with inputs as the scorers' benchmarks have them: counts,
// few of which are not 0.
func BenchmarkHotCounts(b *testing.B) {
	p := load(b, perceptron(1, 512, 64, 20))
	for _, rows := range []int{1, 8, 32, 256} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			perInference(b, func(int) *Program { return p }, counts(rows, 512, 40))
		})
	}
}

func counts(rows, n, full int) *tensor.Tensor {
	r := rand.New(rand.NewPCG(5, 5))
	t := floats([]int{rows, n}, make([]float32, rows*n)...)
	for i := range rows {
		for range full {
			t.Floats[i*n+r.IntN(n)]++
		}
	}
	return t
}

// BenchmarkCold runs a thousand models one after another, so that weights come from memory.
func BenchmarkCold(b *testing.B) {
	programs := make([]*Program, 1000)
	for i := range programs {
		programs[i] = load(b, perceptron(uint64(i), 512, 64, 20))
	}
	for _, rows := range []int{1, 8} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			perInference(b, func(i int) *Program { return programs[i*7919%len(programs)] }, random(rand.New(rand.NewPCG(1, 1)), rows, 512))
		})
	}
}

func BenchmarkText(b *testing.B) {
	p := load(b, intents(1, 500, 20))
	for _, rows := range []int{1, 32, 256} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) { perInference(b, func(int) *Program { return p }, messages(rows, 500)) })
	}
}

func BenchmarkLoad(b *testing.B) {
	for name, file := range map[string][]byte{"512-64-20": perceptron(1, 512, 64, 20), "text": intents(1, 500, 20)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var p *Program
			begin := used(b)
			for b.Loop() {
				p = load(b, file)
			}
			b.ReportMetric(float64((used(b)-begin).Nanoseconds())/float64(b.N), "cpu-ns/load")
			b.ReportMetric(float64(p.Bytes()), "bytes/model")
		})
	}
}
