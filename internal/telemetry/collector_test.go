package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collect "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	wire "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// spy is a collector that keeps what it is sent, over HTTP or gRPC.
type spy struct {
	collect.UnimplementedTraceServiceServer
	t    *testing.T
	addr string

	mu       sync.Mutex
	spans    []*wire.Span
	resource map[string]string
	header   map[string]string
	path     string
}

func (s *spy) take(r *collect.ExportTraceServiceRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rs := range r.ResourceSpans {
		s.resource = map[string]string{}
		for _, a := range rs.Resource.Attributes {
			s.resource[a.Key] = a.Value.GetStringValue()
		}
		for _, scope := range rs.ScopeSpans {
			s.spans = append(s.spans, scope.Spans...)
		}
	}
}

// span is the one of a name.
func (s *spy) span(name string) *wire.Span {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.spans, func(sp *wire.Span) bool { return sp.Name == name })
	if i < 0 {
		s.t.Fatalf("no span is called %s among %d", name, len(s.spans))
	}
	return s.spans[i]
}

func (s *spy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(body)); err == nil {
			body, err = io.ReadAll(z)
		}
	}
	var request collect.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &request)
	}
	if err != nil {
		s.t.Error(err)
	}
	s.mu.Lock()
	s.path, s.header = r.URL.Path, map[string]string{}
	for name := range r.Header {
		s.header[strings.ToLower(name)] = r.Header.Get(name)
	}
	s.mu.Unlock()
	s.take(&request)
}

func (s *spy) Export(ctx context.Context, r *collect.ExportTraceServiceRequest) (*collect.ExportTraceServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	s.mu.Lock()
	s.header = map[string]string{}
	for name, values := range md {
		s.header[name] = values[0]
	}
	s.mu.Unlock()
	s.take(r)
	return &collect.ExportTraceServiceResponse{}, nil
}

func spyHTTP(t *testing.T) *spy {
	s := &spy{t: t}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.addr = server.URL
	return s
}

func spyGRPC(t *testing.T) *spy {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &spy{t: t, addr: "http://" + listener.Addr().String()}
	server := grpc.NewServer()
	collect.RegisterTraceServiceServer(server, s)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// of is an environment that holds only what is given.
func of(variables map[string]string) func(string) string {
	return func(name string) string { return variables[name] }
}

func id(b []byte) string { return hex.EncodeToString(b) }
