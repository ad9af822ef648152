package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
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
