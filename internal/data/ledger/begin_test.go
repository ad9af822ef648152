package ledger_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// firstLook runs its function once, just before a ledger reads the offsets from Redis for
// the first time.
type firstLook struct {
	once sync.Once
	come func()
}

func (h *firstLook) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	return &watched{c, h}, err
}

type watched struct {
	net.Conn
	h *firstLook
}

func (w *watched) Write(b []byte) (int, error) {
	if bytes.Contains(bytes.ToLower(b), []byte("hgetall")) {
		w.h.once.Do(w.h.come)
	}
	return w.Conn.Write(b)
}

// A second process begins while the first one appends and applies facts. The second must not
// delete everything in Redis because of these facts.
func TestWhoBeginsAmidFactsForgetsNothing(t *testing.T) {
	w := newWorld(t, 1)
	first := w.open()
	var s script
	v, _ := s.runRequest("intent", "bot-1", "1", nil)
	_, _, err := first.Append(t.Context(), v)
	must(t, err)
	must(t, w.redis.HSet(t.Context(), w.prefix()+"told", "mark", "is there").Err())

	o := w.options()
	look := &firstLook{come: func() {
		v, _ := s.runRequest("intent", "bot-2", "2", nil)
		_, _, err := first.Append(t.Context(), v)
		if err != nil {
			t.Error(err)
		}
	}}
	to := *w.redis.Options()
	to.Dialer = look.dial
	o.Redis = redis.NewClient(&to)
	t.Cleanup(func() { _ = o.Redis.Close() })
	second := w.openWith(o)
	caughtUp(t, second)
	told, err := second.Told(t.Context(), []string{"mark"})
	must(t, err)
	if string(told["mark"]) != "is there" {
		t.Error("the second deleted everything in Redis as if the stream were a new one")
	}
	m, err := second.Making(t.Context(), "intent", "bot-2")
	must(t, err)
	if m.Waiting == nil {
		t.Errorf("the second knows %+v", m)
	}
}
