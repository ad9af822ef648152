package gateway

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/scoring/oip"
	"tidemill.dev/internal/scoring/oip/protobuf"
	"tidemill.dev/internal/scoring/serving"
)

// bytesOfTests sends and receives messages as bytes.
type bytesOfTests struct{}

func (bytesOfTests) Name() string { return "proto" }

func (bytesOfTests) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bytesOfTests) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

var errModelsOfTests = errors.New("the models of this test are away")

// rpcWorld is a world whose gateway serves gRPC. A request that is admitted finds no models.
type rpcWorld struct {
	*world
	conn *grpc.ClientConn
}

func newRPCWorld(t *testing.T, models func(context.Context) (*serving.Models, error), change func(*Options)) *rpcWorld {
	w := newWorldOf(t, testConfig, embedded.Options{}, func(o *Options) {
		o.ListenGRPC = "127.0.0.1:0"
		o.InferenceGRPC = protobuf.New(oip.New(oip.Options{Models: models, Ready: func(context.Context) bool { return true }}))
		change(o)
	})
	return &rpcWorld{w, w.dialGRPC()}
}

func (w *world) dialGRPC() *grpc.ClientConn {
	conn := must1(grpc.NewClient("passthrough:///"+w.gateway.AddrGRPC(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesOfTests{}))))(w)
	w.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (w *rpcWorld) as(name string) context.Context {
	if name == "" {
		return w.Context()
	}
	return metadata.AppendToOutgoingContext(w.Context(), "authorization", "Bearer "+tokenFor(name))
}

func (w *rpcWorld) ask(name, method string, message []byte) error {
	var answer []byte
	return w.conn.Invoke(w.as(name), "/inference.GRPCInferenceService/"+method, &message, &answer)
}

func (w *rpcWorld) stream(name string) grpc.ClientStream {
	w.Helper()
	return must1(w.conn.NewStream(w.as(name), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/inference.GRPCInferenceService/ModelStreamInfer"))(w)
}

func modelsAreAway(context.Context) (*serving.Models, error) { return nil, errModelsOfTests }

func wantCode(t testing.TB, err error, code codes.Code, says string) {
	t.Helper()
	if status.Code(err) != code || err != nil && !strings.Contains(err.Error(), says) {
		t.Errorf("want %v with %q: %v", code, says, err)
	}
}

var askOfTests = []byte("\x0a\x01m") // a model's name

// A caller has the same rights over gRPC as over HTTP.
func TestRightsOverGRPC(t *testing.T) {
	t.Parallel()
	w := newRPCWorld(t, modelsAreAway, func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: read")+callerLine("one", "role: read, keys: [bot-1]")+
			callerLine("poster", "role: publish")+callerLine("boss", "role: operate")+callerLine("member", "role: read")+
			"teams:\n  chat: {keys: [bot-1], recipes: [intent], members: [member]}\n")
	})
	for _, c := range []struct {
		caller, method string
		code           codes.Code
		says           string
	}{
		{"", "ServerLive", codes.OK, ""},
		{"", "ServerReady", codes.OK, ""},
		{"", "ServerMetadata", codes.Unauthenticated, "token"},
		{"", "ModelInfer", codes.Unauthenticated, "token"},
		{"stranger", "ModelInfer", codes.Unauthenticated, "token"},
		{"poster", "ModelInfer", codes.PermissionDenied, "read"},
		{"one", "ServerMetadata", codes.OK, ""},
		{"one", "ModelInfer", codes.PermissionDenied, "takes a key"},
		{"one", "RepositoryIndex", codes.PermissionDenied, "takes a key"},
		{"all", "ModelInfer", codes.Unavailable, "of this test are away"},
		{"all", "RepositoryModelUnload", codes.PermissionDenied, "operate"},
		{"member", "RepositoryModelUnload", codes.PermissionDenied, "the role operate only for some keys"},
		{"boss", "RepositoryModelUnload", codes.Unavailable, "of this test are away"},
		{"all", "ModelConfig", codes.Unimplemented, ""},
	} {
		t.Run(c.caller+" "+c.method, func(t *testing.T) { wantCode(t, w.ask(c.caller, c.method, askOfTests), c.code, c.says) })
	}
	wantCode(t, w.stream("").RecvMsg(new([]byte)), codes.Unauthenticated, "token")
	var health []byte
	if err := w.conn.Invoke(t.Context(), "/grpc.health.v1.Health/Check", new([]byte), &health); err != nil || string(health) != "\x08\x01" {
		t.Errorf("the health without a token: %q, %v", health, err)
	}
	metrics := w.do("GET", "/metrics", "", tokenHeader("boss")...).body
	if line := `tidemill_gateway_requests_total{code="403",route="POST /inference.GRPCInferenceService/ModelInfer"} 2`; !strings.Contains(metrics, line) && !strings.Contains(metrics, "role") {
		t.Errorf("no %s in the metrics", line)
	}
	w.waitUntil("the room is returned", func() bool { return w.gateway.room.takenBytes() == 0 })
}

// Without tokens, only a client that names this machine is admitted.
func TestGRPCWithoutTokensIsForThisMachine(t *testing.T) {
	t.Parallel()
	w := newRPCWorld(t, modelsAreAway, func(*Options) {})
	wantCode(t, w.ask("", "ModelInfer", askOfTests), codes.Unavailable, "are away")
	conn := must1(grpc.NewClient("passthrough:///"+w.gateway.AddrGRPC(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("evil.example")))(t)
	defer conn.Close()
	err := conn.Invoke(t.Context(), "/inference.GRPCInferenceService/ModelInfer", &askOfTests, new([]byte), grpc.ForceCodecV2(bytesOfTests{}))
	wantCode(t, err, codes.PermissionDenied, "evil.example")
}

func TestLimitsOfGRPC(t *testing.T) {
	t.Parallel()
	w := newRPCWorld(t, modelsAreAway, func(o *Options) {
		o.Limits.UnderWay, o.Limits.OwnStreams, o.Limits.Streams, o.Limits.Idle = 1<<20, 2, 2, 5*time.Second // two streams are open when the third comes, also on a busy machine
	})
	wantCode(t, w.ask("", "ModelInfer", make([]byte, mostMessage+1)), codes.ResourceExhausted, "larger than max")
	wantCode(t, w.ask("", "ModelInfer", make([]byte, 2<<20)), codes.Unavailable, "")
	bomb := make([]byte, 2*mostMessage) // a few kilobytes by gzip
	err := w.conn.Invoke(t.Context(), "/inference.GRPCInferenceService/ModelInfer", &bomb, new([]byte), grpc.UseCompressor(gzip.Name))
	wantCode(t, err, codes.ResourceExhausted, "larger than max")
	first, second := w.stream(""), w.stream("")
	for _, s := range []grpc.ClientStream{first, second} {
		var answer []byte
		w.must(s.SendMsg(&askOfTests))
		w.must(s.RecvMsg(&answer))
		if !strings.Contains(string(answer), "are away") {
			t.Errorf("%q", answer)
		}
	}
	wantCode(t, w.stream("").RecvMsg(new([]byte)), codes.Unavailable, "gRPC streams are open")
	wantCode(t, first.RecvMsg(new([]byte)), codes.DeadlineExceeded, "no message came")
	wantCode(t, second.RecvMsg(new([]byte)), codes.DeadlineExceeded, "no message came")
	w.waitUntil("the room is returned", func() bool { return w.gateway.room.takenBytes() == 0 })
}

// A stream without end does not delay the gateway's close.
func TestCloseEndsStreamsOfGRPC(t *testing.T) {
	t.Parallel()
	w := newRPCWorld(t, modelsAreAway, func(*Options) {})
	s := w.stream("")
	w.must(s.SendMsg(&askOfTests))
	w.must(s.RecvMsg(new([]byte)))
	ended := make(chan error, 1)
	go func() { ended <- s.RecvMsg(new([]byte)) }()
	w.must(w.gateway.Close(t.Context()))
	wantCode(t, <-ended, codes.Unavailable, "closes")
}

// A handler that panics costs only its request.
func TestAPanicOverGRPC(t *testing.T) {
	t.Parallel()
	w := newRPCWorld(t, func(context.Context) (*serving.Models, error) { panic("a fault of ours") }, func(*Options) {})
	for range 2 {
		wantCode(t, w.ask("", "ModelInfer", askOfTests), codes.Internal, "")
	}
	w.waitUntil("the room is returned", func() bool { return w.gateway.room.takenBytes() == 0 })
}
