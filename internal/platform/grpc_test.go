package platform

import (
	"context"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// plainCodec sends messages that tests write field by field. The real tests have clients that were made
// from the protocol's own files.
type plainCodec struct{}

func (plainCodec) Name() string { return "proto" }

func (plainCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*protoMessage))}, nil
}

func (plainCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*protoMessage) = data.Materialize()
	return nil
}

// rpcWorld is a world whose gateway serves gRPC.
type rpcWorld struct {
	*scoringWorld
	http, rpc string // addresses
	conn      *grpc.ClientConn
}

func newRPCWorld(t *testing.T) *rpcWorld {
	w := newScoringWorld(t, "version: 1\n")
	g, err := w.Gateway(t.Context(), GatewayOptions{Listen: "127.0.0.1:0", ListenGRPC: "127.0.0.1:0"})
	w.must(err)
	served := make(chan error, 1)
	go func() { served <- g.Serve(context.Background()) }()
	t.Cleanup(func() {
		w.must(g.Close(context.Background()))
		w.must(<-served)
	})
	conn, err := grpc.NewClient("passthrough:///"+g.AddrGRPC(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.must(err)
	t.Cleanup(func() { w.must(conn.Close()) })
	return &rpcWorld{w, g.Addr(), g.AddrGRPC(), conn}
}

func (w *rpcWorld) call(method string, message protoMessage) (answer protoMessage, err error) {
	err = w.conn.Invoke(w.ctx(), "/inference.GRPCInferenceService/"+method, &message, &answer, grpc.ForceCodecV2(plainCodec{}))
	return answer, err
}

// fieldsOf returns the fields of a message by their numbers.
func fieldsOf(t testing.TB, message []byte) map[int][]string {
	t.Helper()
	all := map[int][]string{}
	for len(message) > 0 {
		at, kind, n := protowire.ConsumeTag(message)
		message = message[n:]
		m := protowire.ConsumeFieldValue(at, kind, message)
		if n < 0 || m < 0 {
			t.Fatalf("%q is no message", message)
		}
		value := message[:m]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(message)
		}
		all[int(at)] = append(all[int(at)], string(value))
		message = message[m:]
	}
	return all
}

func rawFloats(values ...float32) (raw []byte) {
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return raw
}

func floatsOf(raw string) (values []float32) {
	for ; len(raw) >= 4; raw = raw[4:] {
		values = append(values, math.Float32frombits(binary.LittleEndian.Uint32([]byte(raw))))
	}
	return values
}

// xInput is the input of the model twoLabels for two rows.
func xInput(contents protoMessage) protoMessage {
	return field(5, join(text(1, "x"), text(2, "FP32"), field(3, []byte{2, 2}), contents))
}

func TestInferenceOverGRPC(t *testing.T) {
	t.Parallel()
	w := newRPCWorld(t)
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	w.promoteModel("intent/bot-1", 2, 1, twoLabels(false))
	rows := rawFloats(1, 0, 0, 0)
	raw := join(xInput(nil), field(7, rows))
	typed := xInput(field(5, field(6, rows)))
	for _, c := range []struct {
		version string
		data    protoMessage
		raw     bool
	}{{"", raw, true}, {"2", typed, false}, {"1", raw, true}, {"1", join(field(6, text(1, "likely")), typed), false}} {
		answer, err := w.call("ModelInfer", join(c.data, text(1, "intent/bot-1"), text(2, c.version), text(3, "42")))
		w.must(err)
		a := fieldsOf(t, answer)
		if want := c.version + "2"; a[1][0] != "intent/bot-1" || a[2][0] != want[:1] || a[3][0] != "42" || len(a[5]) != 1 {
			t.Fatalf("%+v: %q", c, answer)
		}
		out := fieldsOf(t, []byte(a[5][0]))
		if out[1][0] != "likely" || out[2][0] != "FP32" || out[3][0] != "\x02\x02" {
			t.Errorf("%+v: %v", c, out)
		}
		var values []float32
		if c.raw {
			values = floatsOf(a[6][0])
		} else {
			values = floatsOf(fieldsOf(t, []byte(out[5][0]))[6][0])
		}
		if len(values) != 4 || (values[0] > 0.99) != (c.version == "1") || values[2] != 0.5 || c.raw == (len(out[5]) > 0) {
			t.Errorf("%+v: %v", c, values)
		}
	}
	metadata, err := w.call("ModelMetadata", join(text(1, "intent/bot-1"), text(2, "1")))
	w.must(err)
	if m := fieldsOf(t, metadata); m[1][0] != "intent/bot-1" || m[2][0] != "1" || m[3][0] != "onnx_onnxv1" || !strings.HasPrefix(m[4][0], "\n\x01x\x12\x04FP32") || len(m[5]) != 1 {
		t.Errorf("%q", metadata)
	}
	for method, ask := range map[string]protoMessage{"ServerLive": nil, "ServerReady": nil, "ModelReady": text(1, "intent/bot-1")} {
		if answer, err := w.call(method, ask); err != nil || string(answer) != "\x08\x01" {
			t.Errorf("%s: %q, %v", method, answer, err)
		}
	}
	if answer, err := w.call("ServerMetadata", nil); err != nil || fieldsOf(t, answer)[1][0] != "tidemill" {
		t.Errorf("%q, %v", answer, err)
	}
	for _, at := range []int{1, 2} { // as KServe's clients send the name, and as Triton's do
		if answer, err := w.call("RepositoryModelLoad", text(at, "intent/bot-1")); err != nil || fieldsOf(t, answer)[2][0] != "\x01" {
			t.Errorf("%q, %v", answer, err)
		}
	}
	for _, c := range []struct {
		method, state string
		ask           protoMessage
	}{{"RepositoryIndex", "READY", number(2, 1)}, {"RepositoryModelUnload", "", text(2, "intent/bot-1")}, {"RepositoryIndex", "UNAVAILABLE", nil}} {
		answer, err := w.call(c.method, c.ask)
		w.must(err)
		if c.state == "" {
			continue
		}
		if m := fieldsOf(t, []byte(fieldsOf(t, answer)[1][0])); m[1][0] != "intent/bot-1" || m[2][0] != "2" || m[3][0] != c.state {
			t.Errorf("%q", answer)
		}
	}
	if h, err := grpc_health_v1.NewHealthClient(w.conn).Check(w.ctx(), &grpc_health_v1.HealthCheckRequest{}); err != nil || h.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", h, err)
	}
}

func TestErrorsOfGRPC(t *testing.T) {
	t.Parallel()
	w := newRPCWorld(t)
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	w.promoteModel("intent/bad", 1, 0, []byte("no model"))
	model := text(1, "intent/bot-1")
	four := rawFloats(1, 0, 0, 0)
	for _, c := range []struct {
		method  string
		message protoMessage
		code    codes.Code
		says    string
	}{
		{"ModelInfer", join(text(1, "intent/none"), xInput(nil), field(7, four)), codes.NotFound, "has no champion"},
		{"ModelInfer", join(text(1, "intent/bad"), xInput(nil), field(7, four)), codes.Internal, "cannot be loaded"},
		{"ModelInfer", join(model, text(2, "9"), xInput(nil), field(7, four)), codes.NotFound, ""},
		{"ModelInfer", join(model, text(2, "x"), xInput(nil), field(7, four)), codes.NotFound, "not a version"},
		{"ModelInfer", model, codes.InvalidArgument, "missing"},
		{"ModelInfer", protoMessage("\x0a\x7fshort"), codes.InvalidArgument, "not a valid message"},
		{"ModelInfer", protoMessage("\x0a\x02\xff\xfe"), codes.InvalidArgument, "not UTF-8"},
		{"ModelInfer", join(model, xInput(nil), field(7, four[:12])), codes.InvalidArgument, "fewer values"},
		{"ModelInfer", join(model, xInput(nil), field(7, append(four, 0))), codes.InvalidArgument, "17 bytes"},
		{"ModelInfer", join(model, xInput(nil), field(7, four), field(7, four)), codes.InvalidArgument, "2 raw_input_contents for 1"},
		{"ModelInfer", join(model, xInput(nil), xInput(nil), field(7, four)), codes.InvalidArgument, "more inputs"},
		{"ModelInfer", join(model, xInput(field(5, field(6, four))), field(7, four)), codes.InvalidArgument, "send one of them"},
		{"ModelInfer", join(model, xInput(field(5, field(6, four[:8])))), codes.InvalidArgument, "fewer values"},
		{"ModelInfer", join(model, xInput(field(5, field(7, make([]byte, 32))))), codes.InvalidArgument, "another datatype"},
		{"ModelInfer", join(model, xInput(field(4, text(1, "shared_memory_region"))), field(7, four)), codes.InvalidArgument, "not supported"},
		{"ModelInfer", join(model, field(6, text(1, "likely")), field(6, text(1, "likely")), xInput(nil), field(7, four)), codes.InvalidArgument, "twice"},
		{"ModelInfer", join(model, field(5, join(text(1, "x"), text(2, "FP32"), field(3, protowire.AppendVarint(protowire.AppendVarint(nil, 1<<62), 2)))), field(7, four)), codes.InvalidArgument, "fewer values"},
		{"ModelInfer", join(model, field(5, join(text(1, "x"), field(3, make([]byte, 65))))), codes.InvalidArgument, "64 sizes"},
		{"ModelReady", text(1, "intent/none"), codes.NotFound, ""},
		{"ModelMetadata", text(1, "Intent"), codes.NotFound, "has no champion"},
		{"RepositoryModelUnload", text(2, "intent/none"), codes.NotFound, ""},
		{"ModelStatistics", nil, codes.Unimplemented, ""},
	} {
		if _, err := w.call(c.method, c.message); status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %q: %v", c.method, c.message, err)
		}
	}
}

// An error is one message of a stream, and the next message gets its answer.
func TestAStreamOfGRPCGoesOnAfterAnError(t *testing.T) {
	t.Parallel()
	w := newRPCWorld(t)
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	s, err := w.conn.NewStream(w.ctx(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/inference.GRPCInferenceService/ModelStreamInfer", grpc.ForceCodecV2(plainCodec{}))
	w.must(err)
	good := join(text(1, "intent/bot-1"), xInput(nil), field(7, rawFloats(1, 0, 0, 0)))
	bad := protoMessage(text(1, "intent/none"))
	for range 3 {
		for _, ask := range []*protoMessage{&good, &bad} {
			w.must(s.SendMsg(ask))
			var answer protoMessage
			w.must(s.RecvMsg(&answer))
			a := fieldsOf(t, answer)
			if ask == &bad && (len(a[2]) > 0 || !strings.Contains(a[1][0], "has no champion")) || ask == &good && (len(a[1]) > 0 || floatsOf(fieldsOf(t, []byte(a[2][0]))[6][0])[0] < 0.99) {
				t.Errorf("%q", answer)
			}
		}
	}
	w.must(s.CloseSend())
	var none protoMessage
	if err := s.RecvMsg(&none); err == nil || status.Code(err) != codes.Unknown || err.Error() != "EOF" {
		t.Errorf("the end: %v", err)
	}
}
