package score

import (
	"math"
	"slices"
	"strconv"
	"unsafe"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/jsontensor"
	"tidemill.dev/triggers/keys"
)

// outputs makes the events that follow from items. A returned event is valid until the
// next one; sending it copies it.
type outputs struct {
	source string
	schema string
	view   broker.View
	id     []byte
	ext    []broker.Attribute
	extra  []broker.Header
	marks  []labelMark
}

// labelMark is an attribute of an answer by which its label is found or judged.
type labelMark struct {
	name string
	from keys.Place // place of its value in the event
}

func newOutputs(source string, labels *config.Labels) *outputs {
	o := &outputs{source: source, schema: tidemill.Schema(tidemill.TypeScored)}
	if labels == nil {
		return o
	}
	if labels.Field != "" {
		o.marks = append(o.marks, labelMark{tidemill.AttrLabelField, keys.NewPlace(labels.Field)})
	}
	if labels.Group != "" {
		o.marks = append(o.marks, labelMark{tidemill.AttrLabelGroup, keys.NewPlace(labels.Group)})
	}
	return o
}

// text returns bytes as text without a copy, valid as long as the bytes are.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// scored returns the output of a scored event.
func (o *outputs) scored(b *batch, it *item) *broker.View {
	g := &b.groups[it.group]
	o.id = strconv.AppendInt(append(o.id[:0], it.delivery.of.prefix...), it.offset, 10)
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
	for i := range o.marks {
		// A value that cannot be an attribute, or that is as long as a text, identifies nothing.
		if value := o.marks[i].from.Of(it.v); value != "" && checkKey(value) == nil {
			o.ext = append(o.ext, broker.Attribute{Name: o.marks[i].name, Value: value})
		}
	}
	o.view = broker.View{ID: text(o.id), Source: o.source, Type: tidemill.TypeScored, Subject: it.v.Subject, Time: text(b.stamp),
		DataContentType: "application/json", DataSchema: o.schema, Key: it.v.Key,
		Extensions: o.ext, Data: b.arenas[it.worker][it.from:it.to]}
	return &o.view
}

// carriedBytes returns about how many bytes of an event its output repeats.
func carriedBytes(v *broker.View) int {
	n := len(v.ID) + len(v.Source) + len(v.Subject) + len(v.Key)
	for i := range v.Extensions {
		if x := &v.Extensions[i]; carried(x.Name) {
			n += len(x.Value)
		}
	}
	return n
}

// carried reports whether an output repeats an attribute of its event: correlation,
// trace, hops and keys.
func carried(name string) bool {
	switch name {
	case tidemill.AttrCorrelationID, tidemill.AttrTraceParent, tidemill.AttrTraceState, tidemill.AttrHops, tidemill.AttrPartitionKey:
		return true
	}
	return false
}

// passed returns an event that goes on unchanged. A header next to it has the event's
// position, so that a new owner can find out whether it has gone on.
func (o *outputs) passed(it *item) *broker.View {
	o.id = append(append(append(o.id[:0], o.source...), '#'), it.delivery.of.prefix...)
	o.id = strconv.AppendInt(o.id, it.offset, 10)
	o.extra = slices.DeleteFunc(append(o.extra[:0], it.v.Foreign...), func(h broker.Header) bool { return h.Key == passedHeader })
	o.extra = append(o.extra, broker.Header{Key: passedHeader, Value: o.id})
	o.view = *it.v
	o.view.Foreign = o.extra
	return &o.view
}

// appendScored appends the data of tidemill.scored as JSON: see Scored. If top is above
// 0 it writes that many scores, the highest first, and otherwise all in the order of
// the labels. NaN and infinity become null.
func appendScored(dst []byte, a *infer.Answer, top int) []byte {
	if len(a.Scores) == 0 && a.Label == "" {
		return appendValues(dst, a.Values)
	}
	dst = append(dst, '{')
	if a.Label != "" {
		dst = append(dst, `"label":`...)
		dst = jsontensor.AppendText(dst, a.Label)
		if i := scoreOf(a); i >= 0 {
			dst = append(dst, `,"score":`...)
			dst = appendScore(dst, a.Scores[i])
		}
	}
	if len(a.Scores) > 0 {
		if a.Label != "" {
			dst = append(dst, ',')
		}
		dst = append(dst, `"scores":`...)
		dst = appendScores(dst, a, top)
	}
	return append(dst, '}')
}

// scoreOf returns the index of the label's score; -1 if it has none. A model that does
// not name its labels has chosen the highest score.
func scoreOf(a *infer.Answer) int {
	i := nextLower(a.Scores, -1)
	if a.Labels == nil || i >= 0 && i < len(a.Labels) && a.Labels[i] == a.Label {
		return i
	}
	for i = range min(len(a.Labels), len(a.Scores)) {
		if a.Labels[i] == a.Label {
			return i
		}
	}
	return -1
}

// nextLower returns the index of the next lower score; the highest after -1. Of equal
// scores the first comes first. -1 means that there is none.
func nextLower(scores []float32, after int) int {
	best := -1
	for i, s := range scores {
		if after >= 0 && (s > scores[after] || s == scores[after] && i <= after) {
			continue
		}
		if s == s && (best < 0 || s > scores[best]) {
			best = i
		}
	}
	return best
}

func appendScores(dst []byte, a *infer.Answer, top int) []byte {
	dst = append(dst, '{')
	if top <= 0 || top >= len(a.Scores) {
		for i := range a.Scores {
			dst = appendLabelled(dst, a, i)
		}
		return append(dst, '}')
	}
	for i := nextLower(a.Scores, -1); i >= 0 && top > 0; top-- {
		dst = appendLabelled(dst, a, i)
		i = nextLower(a.Scores, i)
	}
	return append(dst, '}')
}

func appendLabelled(dst []byte, a *infer.Answer, i int) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	if i < len(a.Labels) {
		dst = jsontensor.AppendText(dst, a.Labels[i])
	} else {
		dst = append(dst, '"')
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, '"')
	}
	dst = append(dst, ':')
	return appendScore(dst, a.Scores[i])
}

func appendValues(dst []byte, values []float32) []byte {
	dst = append(dst, `{"values":[`...)
	for i, v := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsontensor.AppendFloat(dst, v)
	}
	return append(dst, "]}"...)
}

// appendScore appends a score with six decimals, as docs/scoring.md says. Scores are mostly
// probabilities: more digits would be noise, and they would cost as much as the rest of the output.
func appendScore(dst []byte, v float32) []byte {
	const million, most = 1e6, 1 << 32
	f := float64(v)
	if f < 0 {
		f = -f
	}
	if !(f < most) {
		return appendLarge(dst, v)
	}
	n := uint64(f*million + 0.5)
	if v < 0 && n > 0 {
		dst = append(dst, '-')
	}
	whole, part := n/million, uint32(n%million)
	if whole < 10 {
		dst = append(dst, byte('0'+whole))
	} else {
		dst = strconv.AppendUint(dst, whole, 10)
	}
	a, b, c := part/10000*2, part/100%100*2, part%100*2
	return append(dst, '.', pairs[a], pairs[a+1], pairs[b], pairs[b+1], pairs[c], pairs[c+1])
}

// appendLarge appends a number for which six decimals make no sense.
func appendLarge(dst []byte, v float32) []byte {
	if f := float64(v); !math.IsNaN(f) && !math.IsInf(f, 0) {
		return strconv.AppendFloat(dst, f, 'g', -1, 32)
	}
	return append(dst, "null"...)
}

// pairs are the numbers from 00 to 99.
const pairs = "00010203040506070809" + "10111213141516171819" + "20212223242526272829" + "30313233343536373839" + "40414243444546474849" +
	"50515253545556575859" + "60616263646566676869" + "70717273747576777879" + "80818283848586878889" + "90919293949596979899"
