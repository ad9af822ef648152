package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go/protocol"

	"tidemill.dev/broker/internal/wire"
)

// anyNode sends a request over the control connection, to whichever server of
// the cluster that is.
const anyNode int32 = -1

// exchange is one request of our own encoding and its answer, carried over a
// connection of kafka-go's transport: the transport hands the connection to
// RawExchange and neither side registers anything process-wide.
//
// The race it guards against: the transport gives up waiting when the context
// ends, while its connection goroutine may still be writing our request and
// filling our answer. Whoever wins claim owns the buffers; a caller that lost
// it waits for the goroutine to let go, which cutting the connection makes
// prompt.
type exchange struct {
	ctx    context.Context
	node   int32
	frame  *wire.Frame
	answer []byte

	claim atomic.Bool
	gone  chan struct{}
}

var (
	_ protocol.BrokerMessage = (*exchange)(nil)
	_ protocol.RawExchanger  = (*exchange)(nil)
)

// ApiKey names the request to the transport.
func (x *exchange) ApiKey() protocol.ApiKey { return protocol.ApiKey(x.frame.Key) }

// Broker routes the request; our own metadata has decided where to.
func (x *exchange) Broker(protocol.Cluster) (protocol.Broker, error) {
	return protocol.Broker{ID: x.node}, nil
}

// Required makes the transport hand over the connection.
func (x *exchange) Required(map[protocol.ApiKey]int16) bool { return true }

// RawExchange writes the request and reads the answer.
func (x *exchange) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if !x.claim.CompareAndSwap(false, true) {
		return nil, context.Canceled
	}
	defer close(x.gone)
	stop := func() bool { return true }
	if conn, ok := rw.(net.Conn); ok {
		stop = context.AfterFunc(x.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	}
	err := x.exchange(rw)
	if !stop() && err == nil {
		// The answer came, but the connection is being cut: it must not go
		// back among the idle ones, where the cut would hit someone else.
		err = context.Cause(x.ctx)
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

func (x *exchange) exchange(rw io.ReadWriter) (err error) {
	if _, err := x.frame.WriteTo(rw); err != nil {
		return err
	}
	x.answer, err = wire.ReadAnswer(rw, x.answer)
	return err
}

// call sends a frame to a node and returns the answer, which uses buf's memory
// if that suffices. When call returns, nobody else touches frame or buf.
func (b *Broker) call(ctx context.Context, node int32, frame *wire.Frame, buf []byte) ([]byte, error) {
	x := &exchange{ctx: ctx, node: node, frame: frame, answer: buf, gone: make(chan struct{})}
	err := b.roundTrip(ctx, x)
	if err == nil {
		return x.answer, nil
	}
	if x.claim.CompareAndSwap(false, true) {
		err = fmt.Errorf("%w: %w", errUnsent, err)
	} else {
		<-x.gone
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return nil, err
}

// errUnsent says that not a byte of a request has left.
var errUnsent = errors.New("not sent")

// roundTrip hands a request to the transport, unless the broker is closed: the
// transport would open up again for it.
func (b *Broker) roundTrip(ctx context.Context, request protocol.Message) error {
	if b.life.Err() != nil {
		return ErrClosed
	}
	_, err := b.transport.RoundTrip(ctx, b.addr, request)
	return err
}

// within bounds one request. A request that has no answer by then is in doubt,
// and what follows from that is the caller's to know.
func (b *Broker) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, b.requestTimeout)
}
