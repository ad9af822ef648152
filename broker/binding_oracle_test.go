package broker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/format"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"tidemill.dev/broker/internal/wire"
)

// The oracle is sdk-go's own binding code on our record, used as its Kafka protocols use it, but
// without their Kafka clients.

var oracleSpecs = spec.WithPrefix(headerPrefix)

type oracleMessage struct {
	headers map[string]string
	value   []byte
	format  format.Format
	version spec.Version
}

func newOracleMessage(r *wire.Record) *oracleMessage {
	m := &oracleMessage{headers: map[string]string{}, value: r.Value}
	for _, h := range r.Headers {
		m.headers[strings.ToLower(h.Key)] = string(h.Value)
	}
	m.format = format.Lookup(m.headers[headerContentType])
	if m.format == nil {
		m.version = oracleSpecs.Version(m.headers["ce_specversion"])
	}
	return m
}

func (m *oracleMessage) ReadEncoding() binding.Encoding {
	switch {
	case m.format != nil:
		return binding.EncodingStructured
	case m.version != nil:
		return binding.EncodingBinary
	}
	return binding.EncodingUnknown
}

func (m *oracleMessage) ReadStructured(ctx context.Context, w binding.StructuredWriter) error {
	if m.format == nil {
		return binding.ErrNotStructured
	}
	return w.SetStructuredEvent(ctx, m.format, bytes.NewReader(m.value))
}

func (m *oracleMessage) ReadBinary(_ context.Context, w binding.BinaryWriter) error {
	for key, value := range m.headers {
		if err := m.readHeader(w, key, value); err != nil {
			return err
		}
	}
	if m.value == nil {
		return nil
	}
	return w.SetData(bytes.NewBuffer(m.value))
}

func (m *oracleMessage) readHeader(w binding.BinaryWriter, key, value string) error {
	if key == headerContentType {
		return w.SetAttribute(m.version.AttributeFromKind(spec.DataContentType), value)
	}
	if a := m.version.Attribute(key); a != nil {
		return w.SetAttribute(a, value)
	}
	if name, ok := strings.CutPrefix(key, headerPrefix); ok {
		return w.SetExtension(name, value)
	}
	return nil
}

func (m *oracleMessage) GetAttribute(k spec.Kind) (spec.Attribute, any) {
	a := m.version.AttributeFromKind(k)
	if a == nil {
		return nil, nil
	}
	return a, m.headers[a.PrefixedName()]
}

func (m *oracleMessage) GetExtension(name string) any { return m.headers[headerPrefix+name] }

func (m *oracleMessage) Finish(error) error { return nil }

type oracleWriter struct{ record *wire.Record }

func (w oracleWriter) Start(context.Context) error { return nil }
func (w oracleWriter) End(context.Context) error   { return nil }

func (w oracleWriter) SetStructuredEvent(_ context.Context, f format.Format, r io.Reader) (err error) {
	w.record.Headers = []wire.Header{{Key: headerContentType, Value: []byte(f.MediaType())}}
	w.record.Value, err = io.ReadAll(r)
	return err
}

func (w oracleWriter) SetData(r io.Reader) (err error) {
	w.record.Value, err = io.ReadAll(r)
	return err
}

func (w oracleWriter) SetAttribute(a spec.Attribute, value any) error {
	if a.Kind() == spec.DataContentType {
		return w.add(headerContentType, value)
	}
	return w.add(headerPrefix+a.Name(), value)
}

func (w oracleWriter) SetExtension(name string, value any) error {
	return w.add(headerPrefix+name, value)
}

func (w oracleWriter) add(key string, value any) error {
	if value == nil {
		return nil
	}
	s, err := types.Format(value)
	w.record.Headers = append(w.record.Headers, wire.Header{Key: key, Value: []byte(s)})
	return err
}

func oracleDecode(r *wire.Record) (*event.Event, error) {
	e, err := binding.ToEvent(context.Background(), newOracleMessage(r))
	if err == nil {
		err = e.Validate()
	}
	return e, err
}

func oracleEncode(t testing.TB, e event.Event, structured bool) *wire.Record {
	t.Helper()
	ctx, r := binding.WithForceBinary(context.Background()), new(wire.Record)
	if structured {
		ctx = binding.WithForceStructured(context.Background())
	}
	if _, err := binding.Write(ctx, binding.ToMessage(&e), oracleWriter{r}, oracleWriter{r}); err != nil {
		t.Fatalf("sdk-go does not write %v: %v", e, err)
	}
	return r
}

func encodeRecord(v *View) *wire.Record {
	r := new(wire.Record)
	r.Key, r.Value, r.Headers = new(encoder).encode(v, nil)
	return r
}

// canonicalText returns an event as text: equal events have equal texts. It ignores the types of
// extensions, which are lost on Kafka, and the difference between no data and empty data, which
// sdk-go loses.
func canonicalText(t testing.TB, e event.Event) string {
	t.Helper()
	all := map[string]string{"id": e.ID(), "source": e.Source(), "type": e.Type(), "subject": e.Subject(),
		"datacontenttype": e.DataContentType(), "dataschema": e.DataSchema()}
	if !e.Time().IsZero() {
		all["time"] = types.FormatTime(e.Time())
	}
	for name, value := range e.Extensions() {
		s, err := types.Format(value)
		if err != nil {
			t.Fatal(err)
		}
		all["ext "+name] = s
	}
	maps.DeleteFunc(all, func(name, v string) bool { return v == "" && !strings.HasPrefix(name, "ext ") })
	return fmt.Sprintf("%q %q", all, string(e.Data()))
}

func canonicalView(t testing.TB, v *View) string {
	t.Helper()
	e, err := v.Event()
	if err != nil {
		t.Fatalf("%+v: %v", v, err)
	}
	return canonicalText(t, e)
}
