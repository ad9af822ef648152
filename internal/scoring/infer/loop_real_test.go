//go:build real

package infer

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev/internal/scoring/infer/ort"
	"tidemill.dev/internal/scoring/infer/sandbox"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// endless returns a model of a few hundred bytes that adds its input to itself 2^62 times.
func endless(name string) []byte {
	scalar := func(name string, kind uint64) wire {
		return wire{}.text(1, name).part(2, wire{}.part(1, wire{}.number(1, kind).part(2, nil)))
	}
	body := wire{}.part(1, node("Identity", []string{"c"}, "c2")).part(1, node("Identity", []string{"v"}, "v2")).text(2, name).
		part(11, scalar("i", 7)).part(11, scalar("c", 9)).part(11, floatsOf("v", 1)).part(12, scalar("c2", 9)).part(12, floatsOf("v2", 1))
	loop := append(node("Loop", []string{"m", "", "x"}, "y"), wire{}.part(5, wire{}.text(1, "body").part(6, body).number(20, 5))...)
	times := wire{}.number(2, 7).text(8, "m").part(9, []byte{0, 0, 0, 0, 0, 0, 0, 0x40})
	return modelOf(wire{}.part(1, loop).text(2, "endless").part(5, times).part(11, floatsOf("x", 1)).part(12, floatsOf("y", 1)))
}

// openRuntime opens a cache whose trials by ONNX Runtime have a second.
func openRuntime(t testing.TB, files map[string][]byte) *Cache {
	t.Helper()
	if os.Getenv(ort.Variable) == "" {
		t.Fatalf("%s is not set: run make test-real, or export %s=$(.ci/onnxruntime-install)", ort.Variable, ort.Variable)
	}
	c, err := Open(Options{Fetch: fetchByArtifact(files)})
	if err != nil {
		t.Fatal(err)
	}
	c.runtime = sandbox.Open(sandbox.Options{Batch: time.Second})
	c.engines = (&engines{c.runtime}).load
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The attack: two models with an endless loop stopped all loading of the gateway.
func TestRealEndlessModelsStopNoOthers(t *testing.T) {
	files := map[string][]byte{"endless-1": endless("a"), "endless-2": endless("b"), "go": simple("Relu"), "runtime": simple("Acosh")}
	t.Logf("an endless model has %d bytes", len(files["endless-1"]))
	c := openRuntime(t, files)
	var all sync.WaitGroup
	for _, name := range []string{"endless-1", "endless-2", "endless-1"} {
		all.Go(func() {
			_, err := c.Load(t.Context(), &Ref{Model: name, Version: 1, Artifact: name})
			if !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "did not answer within 1s") {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	for name, by := range map[string]string{"go": EngineGo, "runtime": EngineONNXRuntime} {
		m, err := c.Load(t.Context(), &Ref{Model: name, Version: 1, Artifact: name})
		if err != nil || m.Engine() != by {
			t.Fatalf("%s: %v", name, err)
		}
		defer m.Release()
		out := make([]tensor.Tensor, 1)
		if err := m.Run([]tensor.Tensor{{Type: tensor.Float, Shape: []int{1, 1}, Floats: []float32{1}}}, out); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	all.Wait()
	m, err := c.Load(t.Context(), &Ref{Model: "runtime", Version: 2, Artifact: "runtime"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	if out := make([]tensor.Tensor, 1); m.Run([]tensor.Tensor{{Type: tensor.Float, Shape: []int{1, 1}, Floats: []float32{1}}}, out) != nil {
		t.Error("after the loss of the process a model does not answer")
	}
}

// processorTime returns the processor time of this process and its children, in steps of 10 ms. A busy
// machine changes it less than the elapsed time.
func processorTime(b *testing.B) (sum time.Duration) {
	own := strconv.Itoa(os.Getpid())
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		b.Fatal(err)
	}
	for _, file := range all {
		text, _ := os.ReadFile(file) // a process that has ended has no file
		_, rest, _ := strings.Cut(string(text), ") ")
		if f := strings.Fields(rest); len(f) > 12 && (f[1] == own || file == "/proc/"+own+"/stat") {
			for _, ticks := range f[11:13] {
				n, _ := strconv.Atoi(ticks)
				sum += time.Duration(n) * 10 * time.Millisecond
			}
		}
	}
	return sum
}

// What the process costs, beside the same library in this process.
func BenchmarkRealRuntime(b *testing.B) {
	file := perceptron(1, 512, 64, 20)
	c := openRuntime(b, nil)
	apart, err := c.runtime.Load("m", file, nil)
	if err != nil {
		b.Fatal(err)
	}
	library, err := ort.Open("")
	if err != nil {
		b.Fatal(err)
	}
	here, err := library.Load(file)
	if err != nil {
		b.Fatal(err)
	}
	for _, rows := range []struct {
		name string
		n    int
	}{{"1", 1}, {"32", 32}, {"256", 256}} {
		in := []tensor.Tensor{{Type: tensor.Float, Shape: []int{rows.n, 512}, Floats: make([]float32, rows.n*512)}}
		for name, run := range map[string]func(in, out []tensor.Tensor) error{"here": here.Run, "apart": apart.Run} {
			b.Run(rows.name+"/"+name, func(b *testing.B) {
				out := make([]tensor.Tensor, 1)
				before := processorTime(b)
				for b.Loop() {
					if err := run(in, out); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
	}
}
