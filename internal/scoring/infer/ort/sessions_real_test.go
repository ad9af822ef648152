//go:build real

package ort

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// BenchmarkSessions loads 1,000 models of 512→64→20, keeps all of them, and runs each.
func BenchmarkSessions(b *testing.B) {
	r, file := openLibrary(b), networkFile(b)
	for b.Loop() {
		before, start := resident(b), time.Now()
		var all []*Program
		for range 1000 {
			p, err := r.Load(file)
			if err != nil {
				b.Fatal(err)
			}
			all = append(all, p)
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/1e6, "ms/session")
		for _, p := range all {
			in := []tensor.Tensor{{Type: tensor.Float, Shape: []int{8, 512}, Floats: make([]float32, 8*512)}}
			if err := p.Run(in, make([]tensor.Tensor, 1)); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(resident(b)-before)/1000, "kB/session")
		b.ReportMetric(float64(all[0].Bytes())/1000, "kB-told/session")
		for _, p := range all {
			p.Close()
		}
	}
}

// resident returns the memory of this process in kB.
func resident(b *testing.B) (kB int) {
	b.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip("it is measured on Linux alone")
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	if _, err := fmt.Sscan(after, &kB); err != nil {
		b.Fatal(err)
	}
	return kB
}
