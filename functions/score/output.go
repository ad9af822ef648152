package score

import (
	"slices"
	"strconv"
	"unsafe"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// outputs writes events that follow from items. The event it returns is good
// until the next: whoever sends it copies it.
type outputs struct {
	source string
	schema string
	view   broker.View
	id     []byte
	ext    []broker.Attribute
	extra  []broker.Header
}

func newOutputs(source string) *outputs {
	return &outputs{source: source, schema: tidemill.Schema(tidemill.TypeScored)}
}

// text is bytes as text, without a copy: for as long as the bytes stay.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// scored is what is said of an event that was scored.
func (o *outputs) scored(b *batch, it *item) *broker.View {
	g := &b.groups[it.group]
	o.id = strconv.AppendInt(append(o.id[:0], it.turn.tenure.prefix...), it.offset, 10)
	o.ext = append(o.ext[:0],
		broker.Attribute{Name: tidemill.AttrModel, Value: g.ref.Model},
		broker.Attribute{Name: tidemill.AttrModelVersion, Value: g.version},
		broker.Attribute{Name: tidemill.AttrCausationID, Value: it.v.ID},
		broker.Attribute{Name: tidemill.AttrCausationSource, Value: it.v.Source})
	for i := range it.v.Extensions {
		if x := &it.v.Extensions[i]; carried(x.Name) {
			o.ext = append(o.ext, *x)
		}
	}
	o.view = broker.View{ID: text(o.id), Source: o.source, Type: tidemill.TypeScored, Subject: it.v.Subject, Time: text(b.stamp),
		DataContentType: "application/json", DataSchema: o.schema, Key: it.v.Key,
		Extensions: o.ext, Data: b.arenas[it.worker][it.from:it.to]}
	return &o.view
}

// carriedBytes is about how much of an event its output repeats.
func carriedBytes(v *broker.View) int {
	n := len(v.ID) + len(v.Source) + len(v.Subject) + len(v.Key)
	for i := range v.Extensions {
		if x := &v.Extensions[i]; carried(x.Name) {
			n += len(x.Value)
		}
	}
	return n
}

// carried tells what goes on from an event to what follows from it: the name of
// the chain, its trace, the length of its loop, and what keys it.
func carried(name string) bool {
	switch name {
	case tidemill.AttrCorrelationID, tidemill.AttrTraceParent, tidemill.AttrTraceState, tidemill.AttrHops, tidemill.AttrPartitionKey:
		return true
	}
	return false
}

// passed is an event that goes on as it came. Beside it stands where it lay, for
// whoever has to find out whether it has gone on.
func (o *outputs) passed(it *item) *broker.View {
	o.id = append(append(append(o.id[:0], o.source...), '#'), it.turn.tenure.prefix...)
	o.id = strconv.AppendInt(o.id, it.offset, 10)
	o.extra = slices.DeleteFunc(append(o.extra[:0], it.v.Foreign...), func(h broker.Header) bool { return h.Key == passedHeader })
	o.extra = append(o.extra, broker.Header{Key: passedHeader, Value: o.id})
	o.view = *it.v
	o.view.Foreign = o.extra
	return &o.view
}
