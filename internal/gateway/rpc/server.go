package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// Limits of a connection. Window is the memory that a request can take before its message is read.
const (
	Window     = 64 << 10
	streams    = 64 // open requests of a connection
	readBuffer = 8 << 10
	pingEvery  = 10 * time.Second // most frequent pings of a client
)

// requests is the number of open requests of the server. Each may take Window bytes before its handler runs,
// because the library receives them at once.
const requests = 512

// Options are the limits and handlers of a server.
type Options struct {
	Listener    net.Listener
	TLS         *tls.Config   // nil means no TLS
	Connections int           // open connections
	Refused     func()        // called for each connection that is refused, or replaced by another
	Headers     int           // bytes of a request's headers
	Message     int           // bytes of a message
	Handshake   time.Duration // time to open a connection
	Idle        time.Duration // time without a request
	Arrive      time.Duration // time that a request may wait before its message is read
	Services    []Service
}

// Service is a gRPC service by its full name.
type Service struct {
	Name    string
	Methods []Method
}

// Method is a method of a service.
type Method struct {
	Name   string
	Stream bool // the client sends any number of messages
	Handle func(*Call) error
}

// Server answers gRPC requests.
type Server struct {
	o        Options
	grpc     *grpc.Server
	open     atomic.Int64 // open requests
	arrivals arrivals
}

// New makes a server.
func New(o Options) *Server {
	s := &Server{o: o, arrivals: arrivals{within: o.Arrive, of: map[string]int{}}}
	secured := insecure.NewCredentials()
	if o.TLS != nil {
		secured = credentials.NewTLS(o.TLS)
	}
	s.grpc = grpc.NewServer(
		grpc.Creds(secured), grpc.ForceServerCodecV2(bytesCodec{}),
		grpc.InTapHandle(s.begin),
		grpc.MaxRecvMsgSize(o.Message), grpc.MaxHeaderListSize(uint32(o.Headers)), grpc.MaxConcurrentStreams(streams),
		grpc.StaticStreamWindowSize(Window), grpc.StaticConnWindowSize(1<<20), // windows of variable size grow to 16 MiB
		grpc.ReadBufferSize(readBuffer),
		grpc.ConnectionTimeout(o.Handshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: o.Idle, Time: o.Idle / 2, Timeout: o.Handshake}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery, PermitWithoutStream: true}),
		grpc.NumStreamWorkers(uint32(4*runtime.GOMAXPROCS(0))), // a worker's stack has its size already
	)
	for _, service := range o.Services {
		d := grpc.ServiceDesc{ServiceName: service.Name}
		for _, m := range service.Methods {
			d.Streams = append(d.Streams, grpc.StreamDesc{StreamName: m.Name, ClientStreams: m.Stream, ServerStreams: m.Stream,
				Handler: func(_ any, stream grpc.ServerStream) error { return s.handle(m.Handle, stream) }})
		}
		s.grpc.RegisterService(&d, nil)
	}
	return s
}

// handle runs a handler. Every method is a stream for the library, because it would read the message of
// any other method before it calls us.
func (s *Server) handle(handle func(*Call) error, stream grpc.ServerStream) error {
	return handle(&Call{server: s, stream: stream})
}

// Serve answers requests until Shutdown.
func (s *Server) Serve() error {
	err := s.grpc.Serve(&listener{Listener: s.o.Listener, most: s.o.Connections, refused: s.o.Refused, open: map[*conn]struct{}{}})
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gRPC on %s: %w", s.o.Listener.Addr(), err)
	}
	return nil
}

// Shutdown waits for the requests under way, and cuts them off when the context ends.
func (s *Server) Shutdown(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.grpc.GracefulStop()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		s.grpc.Stop()
		<-ended
		return fmt.Errorf("wait for the running gRPC requests: %w", context.Cause(ctx))
	}
}

// Error returns an error that the client gets, with the code that has the meaning of a status of HTTP.
func Error(httpStatus int, text string) error { return status.Error(codeOf(httpStatus), text) }

func codeOf(httpStatus int) codes.Code {
	switch httpStatus {
	case 400:
		return codes.InvalidArgument
	case 401:
		return codes.Unauthenticated
	case 403:
		return codes.PermissionDenied
	case 404:
		return codes.NotFound
	case 408:
		return codes.DeadlineExceeded
	case 409:
		return codes.FailedPrecondition
	case 413, 429, 431:
		return codes.ResourceExhausted
	case 405, 501:
		return codes.Unimplemented
	case 503:
		return codes.Unavailable
	}
	return codes.Internal
}

// HTTPStatus returns the status of HTTP that has the meaning of an error.
func HTTPStatus(err error) int {
	switch status.Code(err) {
	case codes.OK:
		return 200
	case codes.InvalidArgument:
		return 400
	case codes.Unauthenticated:
		return 401
	case codes.PermissionDenied:
		return 403
	case codes.NotFound:
		return 404
	case codes.DeadlineExceeded:
		return 408
	case codes.FailedPrecondition:
		return 409
	case codes.ResourceExhausted:
		return 413
	case codes.Canceled:
		return 499
	case codes.Unimplemented:
		return 501
	case codes.Unavailable:
		return 503
	}
	return 500
}

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
