package main

import (
	"bytes"
	"context"
	"strings"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/segmentio/kafka-go"
)

const (
	prefix      = "ce_"
	contentType = "content-type"
)

// message lets the SDK read a record, as the SDK's own Kafka protocols do.
type message struct {
	record *kafka.Message
	spec   spec.Version
}

func decode(ctx context.Context, m *kafka.Message) (*event.Event, error) {
	e, err := binding.ToEvent(ctx, message{m, spec.WithPrefix(prefix).Version("1.0")})
	if err == nil {
		err = e.Validate()
	}
	return e, err
}

func (m message) ReadEncoding() binding.Encoding { return binding.EncodingBinary }

func (m message) ReadStructured(context.Context, binding.StructuredWriter) error {
	return binding.ErrNotStructured
}

func (m message) ReadBinary(_ context.Context, w binding.BinaryWriter) error {
	for i := range m.record.Headers {
		if err := m.header(w, &m.record.Headers[i]); err != nil {
			return err
		}
	}
	return w.SetData(bytes.NewReader(m.record.Value))
}

func (m message) header(w binding.BinaryWriter, h *kafka.Header) error {
	key, value := strings.ToLower(h.Key), string(h.Value)
	if key == contentType {
		return w.SetAttribute(m.spec.AttributeFromKind(spec.DataContentType), value)
	}
	if a := m.spec.Attribute(key); a != nil {
		return w.SetAttribute(a, value)
	}
	if name, ok := strings.CutPrefix(key, prefix); ok {
		return w.SetExtension(name, value)
	}
	return nil
}

// GetAttribute is asked only for attributes that ReadBinary has set.
func (m message) GetAttribute(k spec.Kind) (spec.Attribute, any) {
	a := m.spec.AttributeFromKind(k)
	return a, m.find(a.PrefixedName())
}

func (m message) GetExtension(name string) any { return m.find(prefix + name) }

func (m message) find(key string) any {
	for i := range m.record.Headers {
		if m.record.Headers[i].Key == key {
			return string(m.record.Headers[i].Value)
		}
	}
	return nil
}

func (m message) Finish(error) error { return nil }

// encode writes an event as a record in binary mode.
func encode(e *event.Event, key []byte) (kafka.Message, error) {
	if err := e.Validate(); err != nil {
		return kafka.Message{}, err
	}
	m := kafka.Message{Key: key, Value: e.Data()}
	add := func(name, value string) {
		if value != "" {
			m.Headers = append(m.Headers, kafka.Header{Key: name, Value: []byte(value)})
		}
	}
	add(prefix+"specversion", e.SpecVersion())
	add(prefix+"id", e.ID())
	add(prefix+"source", e.Source())
	add(prefix+"type", e.Type())
	add(prefix+"subject", e.Subject())
	add(prefix+"time", types.FormatTime(e.Time()))
	add(contentType, e.DataContentType())
	for name, value := range e.Extensions() {
		text, err := types.Format(value)
		if err != nil {
			return m, err
		}
		add(prefix+name, text)
	}
	return m, nil
}
