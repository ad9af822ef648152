package deliver

import (
	"bytes"
	"io"
	"net/http"
	"testing"

	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
)

// benchEvent returns a usual event: 1 KiB of data and nine attributes.
func benchEvent() *broker.View {
	v := posted()
	v.Data = bytes.Repeat([]byte("x"), 1<<10)
	return v
}

func benchSink(b *testing.B) string {
	return answering(b, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusNoContent)
	})
}

// BenchmarkPost measures an attempt over loopback, including the subscriber's part.
// BenchmarkBareClient posts the same request with a bare client.
func BenchmarkPost(b *testing.B) {
	s := newPoster(b, triggerTo(benchSink(b)), subscriberOptions{})
	v := benchEvent()
	b.ReportAllocs()
	for b.Loop() {
		if o := s.post(b.Context(), v, 1); o.kind != delivered {
			b.Fatal(o.attempt.Error)
		}
	}
}

// BenchmarkBareClient is the simple way: a client with a timeout, a new request each
// time, and headers set one by one.
func BenchmarkBareClient(b *testing.B) {
	url, v := benchSink(b), benchEvent()
	head := http.Header{}
	body := cehttp.WriteBinary(head, v)
	transport := &http.Transport{MaxIdleConnsPerHost: 8, DisableCompression: true}
	defer transport.CloseIdleConnections()
	trigger := triggerTo(url)
	client := &http.Client{Transport: transport, Timeout: trigger.Delivery.Timeout}
	b.ReportAllocs()
	for b.Loop() {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		for name, values := range head {
			req.Header.Set(name, values[0])
		}
		req.Header.Set("User-Agent", "tidemill")
		req.Header.Set("Prefer", "reply")
		req.Header.Set("Traceparent", traceParent)
		req.Header.Set("Tracestate", "vendor=1")
		res, err := client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
}

// instant is a transport that answers at once without a network, so the benchmark measures
// only our own work.
type instant struct{}

func (instant) RoundTrip(r *http.Request) (*http.Response, error) {
	_ = r.Body.Close()
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
}

// BenchmarkOwn measures an attempt without the network.
func BenchmarkOwn(b *testing.B) {
	s := newPoster(b, triggerTo("http://subscriber.example/"), subscriberOptions{})
	transport, err := s.connections.current()
	if err != nil {
		b.Fatal(err)
	}
	transport.RegisterProtocol("http", instant{})
	v := benchEvent()
	b.ReportAllocs()
	for b.Loop() {
		if o := s.post(b.Context(), v, 1); o.kind != delivered {
			b.Fatal(o.attempt.Error)
		}
	}
}
