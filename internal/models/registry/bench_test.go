package registry

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tidemill.dev"
)

// BenchmarkFromEndToChampion measures the time from the delivery of a run.finished until its
// model.promoted is on the log. In it, predictions of a thousand examples are counted, the gate
// compares them with the champion, and three facts are written and folded.
func BenchmarkFromEndToChampion(b *testing.B) {
	w := newWorld(b)
	r := w.registrar()
	text := []byte("truth,predicted,champion\n")
	for i := range 1000 {
		text = fmt.Appendf(text, "intent-%d,intent-%d,intent-%d\n", i%10, (i+i/900)%10, (i+i/800)%10)
	}
	took := make([]time.Duration, 0, b.N)
	for i := 0; b.Loop(); i++ {
		v := w.runEndEvent(runEnd{model: fmt.Sprint("m-", i%100), gate: []string{"metrics.accuracy >= champion.metrics.accuracy"}, on: tidemill.GateOnRecorded,
			files: map[string]string{"predictions.csv": string(text)}})
		began := time.Now()
		w.must(r.Finished(b.Context(), v))
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	if m := w.model(r, "m-0"); m.Champion == 0 {
		b.Fatalf("the model is %+v", m)
	}
}
