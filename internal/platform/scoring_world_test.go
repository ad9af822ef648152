package platform

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/ops/telemetry"
)

const scorersOfTests = `version: 1
streams: {messages: {partitions: 2}, scored: {partitions: 2}}
scorers:
  intents: {from: messages, to: scored, model: "intent/{key}"}
`

// scoringWorld is a laptop whose tests write the facts of champions themselves.
type scoringWorld struct {
	testing.TB
	*Platform
	facts int
}

func newScoringWorld(t testing.TB, config string) *scoringWorld {
	t.Helper()
	test := t.(*testing.T)
	data := t.TempDir()
	p := open(test, Options{Config: parse(test, config), Embedded: &embedded.Options{Dir: data}, OwnStreams: true, Runs: &RunsOptions{Data: data},
		Telemetry: &telemetry.Options{Name: "test", Getenv: func(string) string { return "" }}, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	return &scoringWorld{TB: t, Platform: p}
}

func (w *scoringWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *scoringWorld) ctx() context.Context {
	ctx, cancel := context.WithTimeout(w.Context(), 2*time.Minute)
	w.Cleanup(cancel)
	return ctx
}

// promoteModel registers and promotes a version of a model, and returns its artifact.
func (w *scoringWorld) promoteModel(model string, version int, turn int64, file []byte) string {
	w.Helper()
	sum := sha256.Sum256(file)
	f := api.File{Path: "model.onnx", Digest: hex.EncodeToString(sum[:]), Size: int64(len(file))}
	w.must(w.Store().PutObject(w.ctx(), f.Digest, f.Size, strings.NewReader(string(file))))
	tree, err := w.Store().Tree(w.ctx(), []api.File{f})
	w.must(err)
	run := fmt.Sprint("run-", version)
	w.fact(tidemill.TypeModelRegistered, model, run, tidemill.ModelRegistered{Artifact: tree.Tree, Judge: tidemill.Judge{Keep: 3},
		Origin: tidemill.Origin{Run: run, Recipe: "intent", Mark: tidemill.Mark{Offset: int64(version)}, Began: time.Unix(int64(version), 0)}})
	m := w.fact(tidemill.TypeModelPromotionProposed, model, "", tidemill.PromotionProposed{Action: tidemill.ActionPromote, Version: version, Basis: version - 1, Turn: turn, Force: true})
	if m.Champion != version {
		w.Fatalf("the champion of %s is %d", model, m.Champion)
	}
	return tree.Tree
}

func (w *scoringWorld) fact(typ, model, run string, data any) *fold.Model {
	w.Helper()
	text, err := json.Marshal(data)
	w.must(err)
	w.facts++
	_, m, err := w.Ledger().AppendModel(w.ctx(), &broker.View{ID: fmt.Sprint("fact-", w.facts), Source: "/tidemill/test/models", Type: typ,
		Subject: strings.TrimPrefix(model, "intent/"), Time: time.Now().UTC().Format(time.RFC3339Nano), DataContentType: "application/json", Data: text,
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: model}, {Name: tidemill.AttrRun, Value: run}}})
	w.must(err)
	return m
}

// publishEvent publishes an event for the models of these tests.
func (w *scoringWorld) publishEvent(stream, id, key string) {
	w.Helper()
	p, err := w.broker.Producer(broker.ProducerOptions{})
	w.must(err)
	v := broker.View{ID: id, Source: "/test", Type: "message", Subject: key, DataContentType: "application/json", Data: []byte(`{"x":[1,0]}`)}
	_, err = p.Publish(w.ctx(), stream, &v)
	w.must(err)
	w.must(p.Close(w.ctx()))
}

// waitForEvents reads a stream from its beginning until it has n events that count, and returns
// them.
func (w *scoringWorld) waitForEvents(stream string, n int, counts func(*follow.Event) bool) (all []follow.Event) {
	w.Helper()
	r, err := follow.OpenReader(w.ctx(), w.broker, follow.ReaderOptions{Stream: stream, Start: broker.Earliest()})
	w.must(err)
	defer func() { _ = r.Close(context.WithoutCancel(w.Context())) }()
	ctx := w.ctx()
	for len(all) < n {
		events, err := r.Next(ctx)
		if err != nil {
			w.Fatalf("%d of %d events on %s: %v", len(all), n, stream, err)
		}
		for i := range events {
			if e := &events[i]; counts(e) {
				e.View = e.View.Clone()
				all = append(all, *e)
			}
		}
	}
	return all
}

func isScored(e *follow.Event) bool { return e.Type == tidemill.TypeScored }

func (w *scoringWorld) attribute(e *follow.Event, name string) string {
	value, _ := e.Attribute(name)
	return value
}

// twoLabels returns a model with an input x of two numbers and two labels. If first is true, it
// prefers the first label for a positive first number, else the second.
func twoLabels(first bool) []byte {
	weights := []float32{4, -4, 0, 0}
	if !first {
		weights = []float32{-4, 4, 0, 0}
	}
	var raw []byte
	for _, f := range weights {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
	}
	graph := join(field(1, onnxNode("MatMul", "sums", "x", "w")), field(1, onnxNode("Softmax", "likely", "sums")), text(2, "g"),
		field(5, join(number(1, 2), number(1, 2), number(2, 1), text(8, "w"), field(9, raw))), field(11, pairs("x")), field(12, pairs("likely")))
	return join(number(1, 8), field(7, graph), field(8, join(text(1, ""), number(2, 13))), field(14, join(text(1, "labels"), text(2, "yes,no"))))
}

// zipMapped returns a model whose scores go through a ZipMap, as exporters of scikit-learn write it.
// The ZipMap is the output, or another node reads it (inside).
func zipMapped(inside bool) []byte {
	labels := join(text(1, "classlabels_strings"), text(9, "yes"), text(9, "no"), number(20, 8)) // 8 is a list of texts
	zip := join(onnxNode("ZipMap", "zipped", "likely"), field(5, labels), text(7, "ai.onnx.ml"))
	nodes, output := join(field(1, onnxNode("Softmax", "likely", "x")), field(1, zip)), "zipped"
	if inside {
		nodes, output = join(nodes, field(1, onnxNode("Identity", "same", "zipped"))), "same"
	}
	entry := join(number(1, 8), field(2, field(1, number(1, 1)))) // a map from text to float
	maps := join(text(1, output), field(2, field(4, field(1, field(5, entry)))))
	graph := join(nodes, text(2, "g"), field(11, pairs("x")), field(12, maps))
	return join(number(1, 8), field(7, graph), field(8, join(text(1, ""), number(2, 13))), field(8, join(text(1, "ai.onnx.ml"), number(2, 1))))
}

func onnxNode(op, output string, inputs ...string) (n protoMessage) {
	for _, in := range inputs {
		n = append(n, text(1, in)...)
	}
	return append(n, join(text(2, output), text(4, op))...)
}

// pairs describes an input or an output with two numbers a row.
func pairs(name string) protoMessage {
	shape := join(field(1, join(text(2, "n"))), field(1, join(number(1, 2))))
	return join(text(1, name), field(2, join(field(1, join(number(1, 1), field(2, shape))))))
}

// protoMessage is a protocol buffers message, the format of ONNX.
type protoMessage = []byte

func join(parts ...protoMessage) (all protoMessage) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func number(at, v int) protoMessage {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(at)<<3), uint64(v))
}

func field(at int, v []byte) protoMessage {
	return append(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(at)<<3|2), uint64(len(v))), v...)
}

func text(at int, v string) protoMessage { return field(at, []byte(v)) }
