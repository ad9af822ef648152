package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"
)

// Call is a request, or a stream of them.
type Call struct {
	server *Server
	stream grpc.ServerStream
}

// Context is the context of the request. It has the client's deadline.
func (c *Call) Context() context.Context { return c.stream.Context() }

// Header returns the first value of a header; empty if there is none.
func (c *Call) Header(name string) string {
	all := metadata.ValueFromIncomingContext(c.stream.Context(), name)
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

// Message is the message of a request.
type Message struct {
	Bytes []byte // valid until Free
	held  mem.Buffer
}

// Free releases the memory of the message.
func (m *Message) Free() {
	if m.held != nil {
		m.held.Free()
		m.held, m.Bytes = nil, nil
	}
}

// Receive reads the message of a request. Only some messages are read at the same time, because the
// library has the whole message in memory before we know its size. The caller gets its share of these
// places.
func (c *Call) Receive(caller string) (Message, error) {
	own, _ := c.stream.Context().Value(cuttableKey{}).(*cuttable)
	p, err := c.server.arrivals.take(c.Context(), caller, own.cut)
	if err != nil {
		return Message{}, err
	}
	defer c.server.arrivals.give(p)
	return c.Next()
}

// Next waits for the next message of a stream. The error is io.EOF at its end.
func (c *Call) Next() (m Message, err error) {
	if err = c.stream.RecvMsg(&m); err != nil && !errors.Is(err, io.EOF) {
		return Message{}, fmt.Errorf("read a message: %w", err)
	}
	return m, err
}

// Send sends an answer. It calls sent when the answer's memory is free again, which may be after the
// request.
func (c *Call) Send(answer []byte, sent func()) error {
	if err := c.stream.SendMsg(&outgoing{bytes: answer, free: &freed{sent: sent}}); err != nil {
		return fmt.Errorf("send the answer: %w", err)
	}
	return nil
}

// outgoing is an answer, and the pool that its buffer returns to.
type outgoing struct {
	bytes []byte
	free  *freed
}

// freed calls a function once.
type freed struct {
	already atomic.Bool
	sent    func()
}

func (f *freed) call() {
	if f.already.CompareAndSwap(false, true) {
		f.sent()
	}
}

// Get belongs to the interface of pools. The library does not call it.
func (*outgoing) Get(n int) *[]byte { return new(make([]byte, n)) }

// Put is called by the library after it has sent the answer.
func (o *outgoing) Put(*[]byte) { o.free.call() }

// bytesCodec passes messages as bytes.
type bytesCodec struct{}

// Name is the name of the format in headers.
func (bytesCodec) Name() string { return "proto" }

// Marshal returns an answer without a copy. The library returns no buffers of small answers. If a client
// disconnects, it drops the other ones too, and the garbage collector finds them.
func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	o, ok := v.(*outgoing)
	if !ok {
		return nil, fmt.Errorf("%T is not an answer", v)
	}
	if mem.IsBelowBufferPoolingThreshold(cap(o.bytes)) {
		o.free.call()
		return mem.BufferSlice{mem.SliceBuffer(o.bytes)}, nil
	}
	runtime.AddCleanup(o, (*freed).call, o.free)
	return mem.BufferSlice{mem.NewBuffer(&o.bytes, o)}, nil
}

// Unmarshal keeps the message, without a copy if it is in one piece.
func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*Message)
	if !ok {
		return fmt.Errorf("%T is not a message", v)
	}
	m.held = data.MaterializeToBuffer(mem.DefaultBufferPool())
	m.Bytes = m.held.ReadOnlyData()
	return nil
}

type cuttableKey struct{}

// cuttable is the context of a stream whose message can be cut off. The client then gets the code
// DeadlineExceeded: the library itself answers when it stops to read, by the error of this context.
type cuttable struct {
	context.Context
	cancel context.CancelFunc
	isCut  atomic.Bool
}

// Value returns the context itself for its own key.
func (c *cuttable) Value(key any) any {
	if key == (cuttableKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// Err returns the reason of the end.
func (c *cuttable) Err() error {
	if c.isCut.Load() {
		return context.DeadlineExceeded
	}
	return c.Context.Err()
}

func (c *cuttable) cut() {
	c.isCut.Store(true)
	c.cancel()
}

// begin admits a request to the server, and gives it its context. The library calls begin before the client
// may send the message. It ends the parent of the context with the request.
func (s *Server) begin(ctx context.Context, _ *tap.Info) (context.Context, error) {
	if s.open.Add(1) > requests {
		s.open.Add(-1)
		return ctx, Error(503, "too many requests are open: send the request again later")
	}
	inner, cancel := context.WithCancel(ctx)
	context.AfterFunc(inner, func() { s.open.Add(-1) })
	return &cuttable{Context: inner, cancel: cancel}, nil
}
