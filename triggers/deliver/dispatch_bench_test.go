//go:build unix

package deliver

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
	"tidemill.dev/config"
)

// counting is a subscriber that only counts requests.
func counting(b *testing.B) (url string, all chan struct{}) {
	var n atomic.Int64
	all = make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if n.Add(1) == int64(b.N) {
			all <- struct{}{}
		}
	}))
	b.Cleanup(server.Close)
	return server.URL, all
}

// BenchmarkDispatch delivers the events that a stream already has, from the embedded
// Kafka to a subscriber over loopback, all on the same cores.
func BenchmarkDispatch(b *testing.B) {
	w := newInstall(b, 4)
	w.session = 10 * time.Second
	url, all := counting(b)
	w.trigger("a", url, func(t *config.Trigger) { t.Delivery.Concurrency = 32 })
	w.close(w.open())
	w.publish(b.N, 1000)
	b.ResetTimer()
	spent := cpu()
	w.open()
	<-all
	report(b, spent)
}

// report reports a rate and the processor's time, which means more on a shared machine.
func report(b *testing.B, spent time.Duration) {
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64((cpu()-spent).Microseconds())/float64(b.N), "cpu-us/event")
}

func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkBareDispatch measures the upper limit: the same requests from bare clients, as
// many at once, without a stream.
func BenchmarkBareDispatch(b *testing.B) {
	url, all := counting(b)
	head := http.Header{}
	body := cehttp.WriteBinary(head, &broker.View{ID: "1", Source: "/shop", Type: "order", Subject: "k1", Data: []byte(`{}`), DataContentType: "application/json"})
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32, DisableCompression: true}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	spent := cpu()
	for range 32 {
		go func() {
			for left.Add(-1) >= 0 {
				bare(b, client, url, head, body)
			}
		}()
	}
	<-all
	report(b, spent)
}

func bare(b *testing.B, client *http.Client, url string, head http.Header, body []byte) {
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		b.Error(err)
		return
	}
	for name, values := range head {
		req.Header.Set(name, values[0])
	}
	req.Header.Set("User-Agent", "tidemill")
	req.Header.Set("Prefer", "reply")
	res, err := client.Do(req)
	if err != nil {
		b.Error(err)
		return
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
}

// BenchmarkLatency publishes a steady two thousand events a second and reports the time
// from publishing to the subscriber.
func BenchmarkLatency(b *testing.B) {
	const rate = 2000
	w := newInstall(b, 4)
	w.session = 10 * time.Second
	var mu sync.Mutex
	var took []time.Duration
	all := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent, _ := strconv.ParseInt(string(body), 10, 64)
		mu.Lock()
		defer mu.Unlock()
		took = append(took, time.Since(time.Unix(0, sent)))
		if len(took) == b.N {
			all <- struct{}{}
		}
	}))
	b.Cleanup(server.Close)
	w.trigger("a", server.URL, nil)
	w.open()
	b.ResetTimer()
	began := time.Now()
	for n := range b.N {
		if wait := time.Until(began.Add(time.Duration(n) * time.Second / rate)); wait > time.Millisecond {
			<-time.After(wait)
		}
		v := broker.View{ID: fmt.Sprint(n), Source: "/shop", Type: "order", Subject: fmt.Sprintf("k%d", n%1000), Data: strconv.AppendInt(nil, time.Now().UnixNano(), 10)}
		w.p.Send(w.ctx, "events", &v, func(_ broker.Receipt, err error) {
			if err != nil {
				b.Error(err)
			}
		})
	}
	<-all
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
