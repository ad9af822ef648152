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
	"time"

	"go.opentelemetry.io/otel/attribute"
	collect "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	wire "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

const at = "http://collector.example:4318"

func TestWhereSpansGo(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want string // URL of the endpoint; empty for none
		grpc bool
	}{
		"nobody says":          {nil, "", false},
		"a base":               {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": at + "/base/"}, at + "/base/v1/traces", false},
		"for traces, as it is": {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": at + "/x", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://other"}, at + "/x", false},
		"grpc":                 {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": at, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, at, true},
		"grpc for traces":      {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": at, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, at, true},
		"space around":         {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": " " + at + "\n"}, at + "/v1/traces", false},
		"disabled":             {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": at, "OTEL_SDK_DISABLED": "TRUE"}, "", false},
		"no exporter":          {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": at, "OTEL_TRACES_EXPORTER": "none"}, "", false},
		"the only exporter":    {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": at, "OTEL_TRACES_EXPORTER": "otlp"}, at + "/v1/traces", false},
	} {
		to, err := envLookup(environmentOf(c.env)).readCollector()
		if err != nil || (to == nil) != (c.want == "") || to != nil && (to.endpoint.String() != c.want || to.grpc != c.grpc) {
			t.Errorf("%s: %+v, %v", name, to, err)
		}
	}
}

func TestHowSpansGo(t *testing.T) {
	c, err := envLookup(environmentOf(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": at, "OTEL_EXPORTER_OTLP_HEADERS": "a=1, Authorization=Bearer%20x=y,",
		"OTEL_EXPORTER_OTLP_TIMEOUT": "1500", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip", "OTEL_EXPORTER_OTLP_COMPRESSION": "none"})).readCollector()
	if err != nil {
		t.Fatal(err)
	}
	if c.timeout != 1500*time.Millisecond || !c.gzip || len(c.headers) != 2 || c.headers["a"] != "1" || c.headers["Authorization"] != "Bearer x=y" || c.tls != nil {
		t.Errorf("%+v", c)
	}
}

// An invalid variable is an error at the start. The error names the variable, but not its value if
// that may be secret.
func TestFaultsOfTheEnvironment(t *testing.T) {
	for _, c := range []struct{ variable, value, want string }{
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", "http://collector:4318"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:s3cret@collector", "HEADERS"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector/?token=s3cret", "leave out ? and #"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://%s3cret", "not the URL"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "use http/protobuf or grpc"},
		{"OTEL_TRACES_EXPORTER", "zipkin", "use otlp or none"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "a=1,s3cret", "pair 2: it has no ="},
		{"OTEL_EXPORTER_OTLP_HEADERS", "=s3cret", "pair 1: it has no name"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "a=s3cret%zz", "pair 1: it has a %"},
		{"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=1,b=s3cret%0d%0ax", "header 2 is not valid"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "b c=s3cret", "header 1 is not valid"},
		{"OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "milliseconds"},
		{"OTEL_EXPORTER_OTLP_COMPRESSION", "brotli", "use gzip or none"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", "testdata/none.pem", "no such file"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", "environment_test.go", "no certificate"},
		{"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "environment_test.go", "CLIENT_KEY"},
		{"OTEL_TRACES_SAMPLER", "jaeger_remote", "always_on, always_off or traceidratio"},
		{"OTEL_TRACES_SAMPLER_ARG", "1.5", "from 0 to 1"},
		{"OTEL_TRACES_SAMPLER_ARG", "NaN", "from 0 to 1"},
		{"OTEL_RESOURCE_ATTRIBUTES", "team", "pair 1: it has no ="},
	} {
		env := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector.example", "OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}
		env[c.variable] = c.value
		_, err := Start(t.Context(), Options{Getenv: environmentOf(env)})
		if err == nil || !strings.Contains(err.Error(), "read "+c.variable) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s=%s: %v", c.variable, c.value, err)
		}
	}
}

func TestSampler(t *testing.T) {
	for name, want := range map[string]string{
		"":                         "ParentBased{root:AlwaysOnSampler",
		"always_on":                "AlwaysOnSampler",
		"always_off":               "AlwaysOffSampler",
		"ParentBased_Always_Off":   "ParentBased{root:AlwaysOffSampler",
		"traceidratio":             "TraceIDRatioBased{0.25}",
		"parentbased_traceidratio": "ParentBased{root:TraceIDRatioBased{0.25}",
	} {
		s, err := envLookup(environmentOf(map[string]string{"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": "0.25"})).readSampler()
		if err != nil || !strings.HasPrefix(s.Description(), want) {
			t.Errorf("%q: %v, %v", name, s, err)
		}
	}
}

func TestWhoSpansAreFrom(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want map[string]string
	}{
		"we":             {nil, map[string]string{"service.name": "door", "service.version": "v1"}},
		"the attributes": {map[string]string{"OTEL_RESOURCE_ATTRIBUTES": "service.name=a,x=b%20c"}, map[string]string{"service.name": "a", "x": "b c"}},
		"the name":       {map[string]string{"OTEL_RESOURCE_ATTRIBUTES": "service.name=a", "OTEL_SERVICE_NAME": "b"}, map[string]string{"service.name": "b"}},
	} {
		who, err := envLookup(environmentOf(c.env)).readResource(Options{Name: "door", Version: "v1"})
		if err != nil {
			t.Fatal(err)
		}
		for key, want := range c.want {
			if got, _ := who.Set().Value(attribute.Key(key)); got.AsString() != want {
				t.Errorf("%s: %s is %q", name, key, got.AsString())
			}
		}
	}
}

// spanStore is a collector that stores the spans it receives, over HTTP or gRPC.
type spanStore struct {
	collect.UnimplementedTraceServiceServer
	t    *testing.T
	addr string

	mu       sync.Mutex
	spans    []*wire.Span
	resource map[string]string
	header   map[string]string
	path     string
}

func (s *spanStore) take(r *collect.ExportTraceServiceRequest) {
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

// spanNamed returns the span with a name.
func (s *spanStore) spanNamed(name string) *wire.Span {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.spans, func(sp *wire.Span) bool { return sp.Name == name })
	if i < 0 {
		s.t.Fatalf("no span is called %s among %d", name, len(s.spans))
	}
	return s.spans[i]
}

func (s *spanStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

func (s *spanStore) Export(ctx context.Context, r *collect.ExportTraceServiceRequest) (*collect.ExportTraceServiceResponse, error) {
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

func spyHTTP(t *testing.T) *spanStore {
	s := &spanStore{t: t}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.addr = server.URL
	return s
}

func spyGRPC(t *testing.T) *spanStore {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &spanStore{t: t, addr: "http://" + listener.Addr().String()}
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

// environmentOf returns an environment with only the given variables.
func environmentOf(variables map[string]string) func(string) string {
	return func(name string) string { return variables[name] }
}

func id(b []byte) string { return hex.EncodeToString(b) }
