package broker

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"tidemill.dev/broker/internal/wire"
)

// cutConn is a connection whose user leaves while the request is written; the
// answer comes all the same.
type cutConn struct {
	net.Conn
	leave  func()
	cut    chan struct{}
	answer []byte
}

func (c *cutConn) Write(p []byte) (int, error) {
	c.leave()
	<-c.cut
	return len(p), nil
}

func (c *cutConn) Read(p []byte) (int, error) {
	n := copy(p, c.answer)
	c.answer = c.answer[n:]
	return n, nil
}

func (c *cutConn) SetDeadline(time.Time) error {
	close(c.cut)
	return nil
}

func TestAConnectionThatIsBeingCutIsNotUsedAgain(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var frame wire.Frame
	frame.Metadata("test", nil)
	x := &exchange{ctx: ctx, frame: &frame, gone: make(chan struct{})}
	conn := &cutConn{leave: cancel, cut: make(chan struct{}), answer: make([]byte, 12)}
	conn.answer[3] = 8
	if _, err := x.RawExchange(conn); !errors.Is(err, context.Canceled) {
		t.Errorf("%v: kafka-go would keep the connection", err)
	}
}

func TestAClosedBrokerDoesNotOpenUpAgain(t *testing.T) {
	b, _ := openFake(t)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.metadata(t.Context()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := b.Streams(t.Context()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
