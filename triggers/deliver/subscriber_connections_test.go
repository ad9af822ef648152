package deliver

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"tidemill.dev/broker"
)

// As many connections stay open as there may be attempts, so that none is
// opened for the next.
func TestConnectionsAreKept(t *testing.T) {
	t.Parallel()
	const most = 50
	for _, status := range []int{200, 204, 404, 500} {
		var opened atomic.Int32
		var inside sync.WaitGroup
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			inside.Done()
			inside.Wait() // until all are here
			w.WriteHeader(status)
			if status >= 400 {
				_, _ = w.Write(make([]byte, 10*maxAnswer)) // more than is kept
			}
		}))
		server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				opened.Add(1)
			}
		}
		server.Start()
		t.Cleanup(server.Close)
		trigger := triggerTo(server.URL)
		trigger.Delivery.Concurrency = most
		s := newPoster(t, trigger, subscriberOptions{})
		for range 3 {
			inside.Add(most)
			var posts sync.WaitGroup
			for range most {
				posts.Go(func() { s.post(t.Context(), posted(), 1) })
			}
			posts.Wait()
		}
		// Where nothing is kept there are three times as many. One or another may be
		// lost: net/http keeps none whose writer has not said in time that it is done.
		if n := opened.Load(); n >= 2*most {
			t.Errorf("answering %d: %d connections for %d posts at once", status, n, most)
		}
	}
}

// A subscriber that answers before it has read the event keeps the transport
// writing. The event's memory is another's by then, and the race detector
// sees who touches it.
func TestTheEventsMemoryIsFreeAfterwards(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 202, 413, 500} {
		url := answering(t, func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.WriteHeader(status)
		})
		s := newPoster(t, triggerTo(url), subscriberOptions{})
		data := bytes.Repeat([]byte("x"), 4<<20)
		v := broker.View{ID: "1", Source: "/s", Type: "t", Data: data}
		s.post(t.Context(), &v, 1)
		clear(data)
	}
}
