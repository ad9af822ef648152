package outcomes

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/keys"
)

// hash is the key of an entry: a hash of the value by which labels find their answers.
type hash [16]byte

func hashOf(value string) (h hash) {
	sum := sha256.Sum256(unsafe.Slice(unsafe.StringData(value), len(value)))
	copy(h[:], sum[:])
	return h
}

// entry holds the answers and labels of one match value.
type entry struct {
	newest  int64 // newest time of a member, in milliseconds of the Unix time
	labels  []label
	answers []answer
}

// position is a place in the answers or in the labels.
type position struct {
	partition int32
	offset    int64
}

// isBefore reports whether the position is before the offset of its partition.
func (p position) isBefore(offsets []int64) bool {
	return int(p.partition) < len(offsets) && p.offset < offsets[p.partition]
}

// label is the truth from one event.
type label struct {
	position
	at         int64 // time at which it reached the log
	used       bool  // whether an answer has got it; otherwise it waits for an answer
	person     bool  // whether a person has given it
	truth      string
	of         string // source of the answered event; empty means any source
	id, source string // of the label's event
	time       string // attribute time of the label's event
}

// answer has the parts of an answer that its outcome needs.
type answer struct {
	position
	at       int64 // time at which it reached the log
	revision int   // revision of its newest outcome; 0 if it has none
	truth    string
	view     answerView
}

// answerView has the parts of an answer's event.
type answerView struct {
	id, time, subject    string
	model, version       string
	causeID, causeSource string
	field, group         string
	data                 string
}

// texts lists all parts, for encoding and decoding.
func (v *answerView) texts() [10]*string {
	return [...]*string{&v.id, &v.time, &v.subject, &v.model, &v.version, &v.causeID, &v.causeSource, &v.field, &v.group, &v.data}
}

func (l *label) texts() [5]*string {
	return [...]*string{&l.truth, &l.of, &l.id, &l.source, &l.time}
}

// append encodes the entry.
func (e *entry) append(dst []byte) []byte {
	dst = binary.AppendVarint(dst, e.newest)
	dst = binary.AppendUvarint(dst, uint64(len(e.labels)))
	for i := range e.labels {
		l := &e.labels[i]
		dst = l.position.append(dst)
		dst = binary.AppendVarint(dst, l.at)
		dst = append(dst, bit(l.used)|bit(l.person)<<1)
		for _, text := range l.texts() {
			dst = appendText(dst, *text)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(e.answers)))
	for i := range e.answers {
		a := &e.answers[i]
		dst = a.position.append(dst)
		dst = binary.AppendVarint(dst, a.at)
		dst = binary.AppendUvarint(dst, uint64(a.revision))
		dst = appendText(dst, a.truth)
		for _, text := range a.view.texts() {
			dst = appendText(dst, *text)
		}
	}
	return dst
}

// newestIn returns the newest time of an encoded entry's members.
func newestIn(encoded []byte) int64 {
	ms, _ := binary.Varint(encoded)
	return ms
}

func (p position) append(dst []byte) []byte {
	return binary.AppendVarint(binary.AppendUvarint(dst, uint64(uint32(p.partition))), p.offset)
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

var errTorn = errors.New("an entry is torn")

// read decodes an entry. Its texts point into the bytes. It reuses the entry's slices.
func (e *entry) read(b []byte) error {
	d := decoder{b: b}
	e.newest = d.varint()
	e.labels, e.answers = e.labels[:0], e.answers[:0]
	for n := d.uvarint(); n > 0 && !d.torn; n-- {
		l := label{position: d.position(), at: d.varint()}
		flags := d.byte()
		l.used, l.person = flags&1 != 0, flags&2 != 0
		for _, text := range l.texts() {
			*text = d.text()
		}
		e.labels = append(e.labels, l)
	}
	for n := d.uvarint(); n > 0 && !d.torn; n-- {
		a := answer{position: d.position(), at: d.varint(), revision: int(d.uvarint()), truth: d.text()}
		for _, text := range a.view.texts() {
			*text = d.text()
		}
		e.answers = append(e.answers, a)
	}
	if d.torn {
		return errTorn
	}
	return nil
}

// answerOf returns the answer with an id, which is the place of its input; nil if there is none.
func (e *entry) answerOf(id string) *answer {
	for i := range e.answers {
		if e.answers[i].view.id == id {
			return &e.answers[i]
		}
	}
	return nil
}

// waiting returns the index of the label at a position that waits for an answer; -1 if there is none.
func (e *entry) waiting(at position) int {
	return slices.IndexFunc(e.labels, func(l label) bool { return !l.used && l.position == at })
}

type decoder struct {
	b    []byte
	torn bool
}

func (d *decoder) skip(n int) {
	if n <= 0 || n > len(d.b) {
		d.torn, d.b = true, nil
		return
	}
	d.b = d.b[n:]
}

func (d *decoder) varint() int64 {
	x, n := binary.Varint(d.b)
	d.skip(n)
	return x
}

func (d *decoder) uvarint() uint64 {
	x, n := binary.Uvarint(d.b)
	d.skip(n)
	return x
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.torn = true
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *decoder) position() position {
	return position{partition: int32(uint32(d.uvarint())), offset: d.varint()}
}

func (d *decoder) text() string {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.torn, d.b = true, nil
		return ""
	}
	s := unsafe.String(unsafe.SliceData(d.b), n)
	d.b = d.b[n:]
	return s
}

// matcher finds the value by which labels and answers match.
type matcher struct {
	of                            *config.Labels
	scorer, source                string // name of the scorer, and source of its answers
	id, origin, place, field      keys.Place
	truth                         keys.Place
	saidID, saidOrigin, saidPlace keys.Place // of labels that a person has given
	saidField, saidTruth          keys.Place
	models                        config.KeyTemplate // of the models' names
}

func newMatcher(names tidemill.Names, c *config.Scorer) *matcher {
	l := c.Labels
	m := &matcher{of: l, scorer: c.Name, source: names.Source("scorer/" + c.Name),
		id: keys.NewPlace(l.ID), origin: keys.NewPlace(l.Source), place: keys.NewPlace(l.Place), field: keys.NewPlace(l.LabelField), truth: keys.NewPlace(l.Truth),
		saidID: keys.NewPlace("data.id"), saidOrigin: keys.NewPlace("data.source"), saidPlace: keys.NewPlace("data.place"),
		saidField: keys.NewPlace("data.field"), saidTruth: keys.NewPlace("data.truth")}
	m.models = c.KeyTemplate()
	return m
}

// isAnswer reports whether an event is an answer of the scorer.
func (m *matcher) isAnswer(v *broker.View) bool {
	return v.Type == tidemill.TypeScored && v.Source == m.source
}

// isLabel reports whether an event is a label for the scorer.
func (m *matcher) isLabel(v *broker.View) bool {
	switch {
	case v.Type == tidemill.TypeLabel:
		scorer, _ := v.Attribute(tidemill.AttrScorer)
		return scorer == m.scorer
	case len(m.of.Types) > 0:
		return slices.Contains(m.of.Types, v.Type)
	}
	return !tidemill.ReservedType(v.Type)
}

// answerValue returns the value by which labels find an answer; empty if it has none.
func (m *matcher) answerValue(v *answerView) string {
	switch {
	case m.of.ID != "":
		return v.causeID
	case m.of.Place != "":
		return v.id
	}
	return v.field
}

// shows says in words which answers have a value.
func (m *matcher) shows(value string) string {
	switch {
	case m.of.ID != "":
		return fmt.Sprintf("an input with the id %q", value)
	case m.of.Place != "":
		return fmt.Sprintf("its input at %q", value)
	}
	return fmt.Sprintf("%q at %s of its input", value, m.of.Field)
}

// readLabel returns the value by which a label finds its answer, and the label. The texts point into the event.
func (m *matcher) readLabel(v *broker.View, l *label) (value string, err error) {
	id, origin, place, field, truth := &m.id, &m.origin, &m.place, &m.field, &m.truth
	if v.Type == tidemill.TypeLabel {
		id, origin, place, field, truth = &m.saidID, &m.saidOrigin, &m.saidPlace, &m.saidField, &m.saidTruth
	}
	at := field
	switch {
	case m.of.ID != "":
		at = id
		if m.of.Source != "" || v.Type == tidemill.TypeLabel {
			l.of = origin.Of(v)
		}
	case m.of.Place != "":
		at = place
	}
	value, l.truth = at.Of(v), truth.Of(v)
	l.person = v.Type == tidemill.TypeLabel
	l.id, l.source, l.time = v.ID, v.Source, v.Time
	switch {
	case value == "":
		return "", errors.New("the label has no value at " + at.String() + ", so that it finds no answer; correct the publisher of the labels, or `match` of the scorer's labels")
	case l.truth == "":
		return "", errors.New("the label has no value at " + truth.String() + ", so that it says no truth; correct the publisher of the labels, or `truth` of the scorer's labels")
	case m.of.Source != "" && l.of == "" && v.Type != tidemill.TypeLabel:
		return "", errors.New("the label has no value at " + origin.String() + ", so that it finds no answer; correct the publisher of the labels, or `match` of the scorer's labels")
	}
	return value, nil
}

// readAnswer reads the parts of an answer's event. The texts point into the event.
func (v *answerView) readAnswer(e *broker.View) {
	*v = answerView{id: e.ID, time: e.Time, subject: e.Subject, data: text(e.Data)}
	for i := range e.Extensions {
		switch x := &e.Extensions[i]; x.Name {
		case tidemill.AttrModel:
			v.model = x.Value
		case tidemill.AttrModelVersion:
			v.version = x.Value
		case tidemill.AttrCausationID:
			v.causeID = x.Value
		case tidemill.AttrCausationSource:
			v.causeSource = x.Value
		case tidemill.AttrLabelField:
			v.field = x.Value
		case tidemill.AttrLabelGroup:
			v.group = x.Value
		}
	}
}

// keyOf returns the key that an answer's model belongs to. A model that takes the place of a missing one has no
// key in its name; then the key is the subject.
func (m *matcher) keyOf(v *answerView) string {
	if key, _ := m.models.KeyOf(v.model); key != "" {
		return key
	}
	return v.subject
}
