package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"tidemill.dev/broker"
)

// takeNothing opens a tail and reads nothing from the connection.
func (w *world) takeNothing(path string) net.Conn {
	w.Helper()
	conn := must1(net.Dial("tcp", strings.TrimPrefix(w.url, "http://")))(w)
	w.Cleanup(func() { _ = conn.Close() })
	w.must(conn.(*net.TCPConn).SetReadBuffer(4 << 10))
	req := must1(http.NewRequest(http.MethodGet, w.url+path, nil))(w)
	w.must(req.Write(conn))
	return conn
}

// publishMuch publishes more than sockets can hold, so that a reader that takes nothing blocks the
// gateway's writes.
func (w *world) publishMuch() (events int) {
	w.Helper()
	data := make([]byte, 900<<10)
	for i := range 20 {
		v := broker.View{ID: fmt.Sprint(i), Source: "/x", Type: "t", Data: data}
		must1(w.producer.Publish(w.Context(), "events", &v))(w)
	}
	return 20
}

func TestSlowReaderIsCutOffWhileAnotherReadsOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Limits.Write = 3 * time.Second })
	n := w.publishMuch()
	w.takeNothing("/api/v1/streams/events/events?from=beginning")
	slow := w.gateway.tails.ended.WithLabelValues(tailSlow)
	l := w.listen("events/events?from=beginning")
	l.firstID()
	for range n {
		if b, err := l.nextBlock(); err != nil || b.data == "" {
			t.Fatalf("the other reads %+v, %v", b, err)
		}
	}
	waitFor(t, func() bool { return testutil.ToFloat64(slow) == 1 })
	must1(w.producer.Publish(t.Context(), "events", &broker.View{ID: "on", Source: "/x", Type: "t"}))(t)
	if line, _ := l.next(); idOf(t, line) != "on" {
		t.Errorf("the other reads %+v", line)
	}
}

func TestSlowReaderDoesNotHoldUpTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Limits.Write = time.Hour })
	w.publishMuch()
	conn := w.takeNothing("/api/v1/streams/events/events?from=beginning")
	must1(io.CopyN(io.Discard, conn, 64<<10))(t) // proves that the gateway is sending; the number of events is random
	ctx, cancel := context.WithTimeout(t.Context(), patienceOfTests)
	defer cancel()
	if err := w.gateway.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
	if n := testutil.ToFloat64(w.gateway.tails.ended.WithLabelValues(tailClosing)); n != 1 {
		t.Errorf("%v tails were closed", n)
	}
}
