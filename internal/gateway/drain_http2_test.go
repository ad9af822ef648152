package gateway

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"tidemill.dev"
)

// Many requests share an HTTP/2 connection. When the gateway closes, the requests under way
// all get their answers, and then the connection ends.
func TestCloseWaitsForAllOfAConnection(t *testing.T) {
	t.Parallel()
	files := newPairFiles(t)
	trust := files.write(t, 1, time.Now().Add(time.Hour))
	w := newWorld(t, func(o *Options) { o.CertFile, o.KeyFile = files.cert, files.key })
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust}, ForceAttemptHTTP2: true, MaxConnsPerHost: 1}
	t.Cleanup(transport.CloseIdleConnections)
	publish := func(id string) (*http.Response, error) {
		req := must1(http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+w.gateway.Addr()+"/events", nil))(t)
		for i, h := 0, eventHeaders(id); i < len(h); i += 2 {
			req.Header.Set(h[i], h[i+1])
		}
		res, err := transport.RoundTrip(req)
		if err == nil {
			res.Body.Close()
		}
		return res, err
	}
	if res := must1(publish("first"))(t); res.ProtoMajor != 2 || res.StatusCode != http.StatusAccepted {
		t.Fatalf("%s %s", res.Proto, res.Status)
	}
	release := w.stallStream(tidemill.StreamEvents)
	const many = 50
	answers := make(chan error, many)
	for i := range many {
		go func() {
			res, err := publish(fmt.Sprint(i))
			if err == nil && res.StatusCode != http.StatusAccepted {
				err = fmt.Errorf("event %d: %s", i, res.Status)
			}
			answers <- err
		}()
	}
	w.waitUntil("all are under way", func() bool {
		return w.gateway.window.takenBytes() >= float64(many*(eventHead+len("test/test0")))
	})
	closed := make(chan error, 1)
	go func() { closed <- w.gateway.Close(t.Context()) }()
	w.waitUntil("the door is closed", func() bool {
		c, err := net.Dial("tcp", w.gateway.Addr())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	release()
	for range many {
		w.must(<-answers)
	}
	w.must(<-closed)
	if n := len(w.storedEvents(tidemill.StreamEvents)); n != many+1 {
		t.Errorf("%d stored", n)
	}
}
