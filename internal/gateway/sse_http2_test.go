package gateway

import (
	"context"
	"crypto/tls"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"tidemill.dev/broker"
)

// Over TLS, browsers use HTTP/2, where many tails share a connection. A tail that is not read
// is cut off, and delays neither the other tails nor the gateway's Close.
func TestTailOverHTTP2(t *testing.T) {
	t.Parallel()
	files := newPairFiles(t)
	trust := files.write(t, 1, time.Now().Add(time.Hour))
	w := newWorld(t, func(o *Options) {
		o.CertFile, o.KeyFile = files.cert, files.key
		o.Limits.Write = 3 * time.Second
		o.Limits.ReadHeader, o.Limits.BodyGrace = 3*time.Second, time.Second
	})
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	follow := func(query string) *tailListener {
		ctx, cancel := context.WithTimeout(t.Context(), patienceOfTests)
		t.Cleanup(cancel)
		req := must1(http.NewRequestWithContext(ctx, http.MethodGet, "https://"+w.gateway.Addr()+"/api/v1/streams/"+query, nil))(t)
		res := must1(transport.RoundTrip(req))(t)
		if res.ProtoMajor != 2 || res.StatusCode != http.StatusOK {
			t.Fatalf("a tail answers %s %s", res.Proto, res.Status)
		}
		return newListener(t, res, cancel)
	}
	w.publishMuch()
	follow("events/events?from=beginning") // the test reads none of it
	l := follow("events/events")
	l.firstID()
	waitFor(t, func() bool { return testutil.ToFloat64(w.gateway.tails.ended.WithLabelValues(tailSlow)) == 1 })
	must1(w.producer.Publish(t.Context(), "events", &broker.View{ID: "on", Source: "/x", Type: "t"}))(t)
	if line, _ := l.next(); idOf(t, line) != "on" {
		t.Errorf("the other reads %+v", line)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patienceOfTests)
	defer cancel()
	if err := w.gateway.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
	if b, err := l.nextBlock(); err == nil {
		t.Errorf("the tail goes on with %+v", b)
	}
}
