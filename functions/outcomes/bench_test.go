//go:build unix

package outcomes

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// residentMiB returns the memory of this process that is in RAM.
func residentMiB(b *testing.B) float64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			kib, _ := strconv.ParseFloat(fields[1], 64)
			return kib / 1024
		}
	}
	return 0
}

// cpuSeconds returns the CPU time of this process. On a busy machine it says more than the clock.
func cpuSeconds() float64 {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}

// waiting are the answers that wait for their labels in the benchmark. The bar is ten million:
//
//	TIDEMILL_WAITING=10000000 go test -run - -bench Waiting -benchtime 1x ./functions/outcomes
func waiting() int {
	n, _ := strconv.Atoi(os.Getenv("TIDEMILL_WAITING"))
	return max(n, 100_000)
}

// BenchmarkWaiting fills the index, and then joins labels of random answers while new answers arrive. It needs no Kafka, so
// it measures only what the owner computes.
func BenchmarkWaiting(b *testing.B) {
	names, err := tidemill.NewNames("prod")
	if err != nil {
		b.Fatal(err)
	}
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	n := waiting()
	for range b.N {
		dir := b.TempDir()
		x, err := openIndex(dir, "", mostInMemory)
		must(err)
		c := scorer(14*24*time.Hour, "legit")
		m := newMatcher(names, &c)
		out := &output{names: names, match: m, answers: streamAnswers, labels: streamLabels, now: time.Now}
		j := &joiner{match: m, index: x, out: out, wait: c.Labels.Wait.Milliseconds(), missing: "legit", forgotten: func(string, position) (bool, error) { return false, nil }}
		answer := answerEvent(names, 0, "bot-42", "legit")
		take := func(i int) {
			answer.ID = "messages/0/" + strconv.Itoa(i)
			answer.Extensions[2].Value = fmt.Sprintf("3f2504e0-4f89-11d3-9a0c-%012d", i)
			must(j.answer(&answer, position{int32(i % 48), int64(i / 48)}, 1_700_000_000_000+int64(i)))
			if x.isFull() {
				must(x.seal("", places{Answers: []int64{int64(i)}}))
				must(x.drop(0, ""))
			}
		}
		began, cpu := time.Now(), cpuSeconds()
		for i := range n {
			take(i)
		}
		filled := time.Since(began)
		b.ReportMetric((cpuSeconds()-cpu)/float64(n)*1e6, "cpu-µs/answer")
		runtime.GC()
		b.ReportMetric(residentMiB(b), "MiB")
		b.ReportMetric(float64(n)/filled.Seconds(), "answers/s")

		const pairs = 200_000
		label := labelEvent("l", 0, "fraud")
		began, cpu = time.Now(), cpuSeconds()
		for i := range pairs {
			take(n + i)
			label.Data = fmt.Appendf(label.Data[:0], `{"of":"3f2504e0-4f89-11d3-9a0c-%012d","truth":"fraud"}`, rand.IntN(n))
			must(j.label(&label, position{0, int64(i)}, 1_700_000_000_000+int64(n+i)))
			if out.size() >= mostOutputs {
				out.clear()
			}
		}
		b.ReportMetric(pairs/time.Since(began).Seconds(), "pairs/s")
		b.ReportMetric((cpuSeconds()-cpu)/pairs*1e6, "cpu-µs/pair")
		b.ReportMetric(float64(len(x.segments)), "files")
		must(x.close())
		began = time.Now()
		again, err := openIndex(dir, "", mostInMemory)
		must(err)
		b.ReportMetric(time.Since(began).Seconds(), "s/open")
		if again.isEmpty() || again.count() < n-2*mostInMemory {
			b.Fatalf("the index has %d entries", again.count())
		}
		must(again.close())
	}
}

// BenchmarkJoin joins a backlog of answers and labels on the embedded Kafka, which works in the same process.
func BenchmarkJoin(b *testing.B) {
	const pairs = 200_000
	for range b.N {
		w := newWorld(b)
		v, l := answerEvent(w.names, 0, "", "legit"), labelEvent("", 0, "fraud")
		for n := range pairs {
			key := "bot-" + strconv.Itoa(n%1000)
			v.ID, v.Subject = place(n), key
			v.Extensions[0].Value, v.Extensions[2].Value = "m/"+key, "i-"+strconv.Itoa(n)
			w.p.Send(b.Context(), streamAnswers, &v, func(_ broker.Receipt, err error) { w.must(err) })
			l.ID, l.Subject = strconv.Itoa(n), key
			l.Data = fmt.Appendf(nil, `{"of":"i-%d","truth":"fraud"}`, n)
			w.p.Send(b.Context(), streamLabels, &l, func(_ broker.Receipt, err error) { w.must(err) })
		}
		w.must(w.p.Flush(b.Context()))
		ends := func() (n int64) {
			all, err := w.b.Ends(b.Context(), tidemill.StreamOutcomes)
			w.must(err)
			for _, p := range all {
				n += p.Offset
			}
			return n
		}
		b.ResetTimer()
		began, cpu := time.Now(), cpuSeconds()
		o := w.options(scorer(14*24*time.Hour, "legit"))
		var killed atomic.Bool
		o.crash = func(string) error {
			if killed.Load() {
				return errCrash
			}
			return nil
		}
		stop := w.runs(o)
		w.awaits("all outcomes", func() bool { return ends() >= pairs })
		b.StopTimer()
		b.ReportMetric(pairs/time.Since(began).Seconds(), "pairs/s")
		b.ReportMetric((cpuSeconds()-cpu)/pairs*1e6, "cpu-µs/pair")
		killed.Store(true)
		w.answer(pairs, "k", "legit") // so that the owner comes to a step, and leaves its table unwritten
		_ = stop()
		killed.Store(false)
		began = time.Now()
		again, err := open(b.Context(), o)
		w.must(err)
		b.ReportMetric(time.Since(began).Seconds(), "s/restart")
		w.must(again.close(b.Context()))
	}
}
