//go:build unix

package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// loadConnections is how many keep-alive connections a benchmark holds open.
const loadConnections = 64

// BenchmarkBare is the floor: net/http with an empty handler.
func BenchmarkBare(b *testing.B) {
	l := must1(net.Listen("tcp", "127.0.0.1:0"))(b)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusAccepted)
	})}
	go func() { _ = s.Serve(l) }() // ends with Close
	b.Cleanup(func() { _ = s.Close() })
	sendLoad(b, l.Addr().String(), single)
}

// BenchmarkSingle publishes single events in binary mode.
func BenchmarkSingle(b *testing.B) {
	w := newWorld(b, nil)
	sendLoad(b, w.gateway.Addr(), single)
	w.reportLatency(b)
}

// BenchmarkSingleWithoutRepeats shows the cost of Redis.
func BenchmarkSingleWithoutRepeats(b *testing.B) {
	w := newWorld(b, func(o *Options) { o.Repeats = nil })
	sendLoad(b, w.gateway.Addr(), single)
}

// BenchmarkBatch publishes batches of a hundred events.
func BenchmarkBatch(b *testing.B) {
	w := newWorld(b, nil)
	sendLoad(b, w.gateway.Addr(), batchOf100)
	b.ReportMetric(float64(b.N)*100/b.Elapsed().Seconds(), "events/s")
}

const kib = 1024

// benchMessage is a request with places for a number that makes each event different.
type benchMessage struct {
	text   []byte
	places []int
}

const placeholder = "################"

func newMessage(text string) *benchMessage {
	m := &benchMessage{text: []byte(text)}
	for at := 0; ; at += len(placeholder) {
		next := strings.Index(text[at:], placeholder)
		if next < 0 {
			return m
		}
		at += next
		m.places = append(m.places, at)
	}
}

func (m *benchMessage) number(n int64) []byte {
	for i, at := range m.places {
		copy(m.text[at:], fmt.Sprintf("%0*x", len(placeholder), n*int64(len(m.places))+int64(i)))
	}
	return m.text
}

func single() *benchMessage {
	return newMessage("POST /events HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Type: application/json\r\nce-specversion: 1.0\r\nce-type: test\r\nce-source: /bench\r\nce-subject: bot-42\r\nce-id: " +
		placeholder + "\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", kib))
}

func batchOf100() *benchMessage {
	var events []string
	for i := range 100 {
		events = append(events, fmt.Sprintf(`{"specversion":"1.0","type":"test","source":"/bench","subject":"bot-%d","id":"%s","datacontenttype":"application/json","data":"%s"}`,
			i, placeholder, strings.Repeat("x", kib)))
	}
	body := "[" + strings.Join(events, ",") + "]"
	return newMessage(fmt.Sprintf("POST /events HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Type: application/cloudevents-batch+json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
}

// sendLoad sends b.N requests over keep-alive connections, each after the previous answer. The
// client does little work itself, because it shares the cores with the gateway.
func sendLoad(b *testing.B, addr string, what func() *benchMessage) {
	var next atomic.Int64
	var all sync.WaitGroup
	b.ReportAllocs()
	spent := cpuTime(b)
	b.ResetTimer()
	for range loadConnections {
		all.Go(func() {
			c := must1((&net.Dialer{}).DialContext(context.Background(), "tcp", addr))(b)
			defer c.Close()
			m := what()
			r := bufio.NewReader(c)
			for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
				if _, err := c.Write(m.number(n)); err != nil {
					b.Error(err)
					return
				}
				if !isAccepted(b, r) {
					return
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-spent).Microseconds())/float64(b.N), "cpu-µs/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

// isAccepted reads an answer and reports whether it is a 202.
func isAccepted(b *testing.B, r *bufio.Reader) bool {
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		b.Error(err)
		return false
	}
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusAccepted {
		b.Errorf("%d %s %v", res.StatusCode, body, err)
		return false
	}
	return true
}

// reportLatency adds the 99th percentile of the gateway's own time, as an upper bound.
func (w *world) reportLatency(b *testing.B) {
	families := must1(w.tel.Registry().Gather())(b)
	for _, f := range families {
		if f.GetName() != "tidemill_gateway_own_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		for _, bucket := range h.GetBucket() {
			if float64(bucket.GetCumulativeCount()) >= 0.99*float64(h.GetSampleCount()) {
				b.ReportMetric(bucket.GetUpperBound()*1e6, "own-p99-µs")
				return
			}
		}
	}
}
