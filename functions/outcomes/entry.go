package outcomes

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"unsafe"
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
