package letters

import (
	"crypto/sha256"
	"time"
	"unique"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// Entry is what the book knows of an open letter.
type Entry struct {
	ID      string
	At      broker.Position // of the letter
	Written time.Time
	Trigger string // empty where the broker wrote the letter
	Group   string // who was reading
	Reason  string
	Type    string // of the event it tells of; empty where that is none
	Key     string // its subject, else its record's key
	Source  broker.Position
	Last    int64  // the letter stands for the offsets of Source up to this one
	Tried   int    // attempts
	Replay  string // the act that asked to deliver it after all; empty while nobody has
}

// Ref is how an act names the letter.
func (e *Entry) Ref() tidemill.LetterRef {
	return tidemill.LetterRef{Partition: e.At.Partition, Offset: e.At.Offset, ID: e.ID, Stream: e.Source.Stream, Source: e.Source.Partition}
}

// name is a letter's id as the book knows it: one size, whoever wrote the id.
type name [16]byte

func nameOf(id string) name {
	sum := sha256.Sum256([]byte(id))
	return name(sum[:])
}

// entry is an Entry as it is kept, of which there may be a million. What many
// letters share is one string in the whole process.
type entry struct {
	text      string // the id and the key behind it
	trigger   unique.Handle[string]
	group     unique.Handle[string]
	reason    unique.Handle[string]
	kind      unique.Handle[string]
	stream    unique.Handle[string] // of the source
	replay    unique.Handle[string]
	written   int64 // Unix nanoseconds
	offset    int64
	from      int64 // offset in the source
	span      int64 // how many offsets behind it the letter stands for too
	partition int32
	source    int32 // partition of the source
	tried     int32
	idLength  int32
}

// EntryOf is what a book would know of a letter that has just been read.
func EntryOf(at broker.Position, written time.Time, v *broker.View, l *Letter) Entry {
	return newEntry(at, written, v, &listed{Stream: l.Stream, Partition: l.Partition, Offset: l.Offset, Last: l.Last, Group: l.Group,
		Reason: l.Reason, Trigger: l.Trigger, OriginalType: l.OriginalType, Tried: l.Tried}).full()
}

func newEntry(at broker.Position, written time.Time, v *broker.View, l *listed) *entry {
	key := v.Subject
	if key == "" {
		key = string(v.Key)
	}
	return &entry{
		text: v.ID + key, idLength: int32(len(v.ID)),
		trigger: unique.Make(l.Trigger), group: unique.Make(l.Group), reason: unique.Make(l.Reason),
		kind: unique.Make(l.OriginalType), stream: unique.Make(l.Stream), replay: unique.Make(""),
		written: written.UnixNano(), offset: at.Offset, partition: at.Partition,
		from: l.Offset, span: max(0, l.Last-l.Offset), source: l.Partition, tried: int32(l.Tried),
	}
}

func (e *entry) id() string  { return e.text[:e.idLength] }
func (e *entry) key() string { return e.text[e.idLength:] }

func (e *entry) full() Entry {
	return Entry{
		ID: e.id(), Key: e.key(), At: broker.Position{Stream: tidemill.StreamDeadLetters, Partition: e.partition, Offset: e.offset},
		Written: time.Unix(0, e.written).UTC(), Trigger: e.trigger.Value(), Group: e.group.Value(), Reason: e.reason.Value(), Type: e.kind.Value(),
		Source: broker.Position{Stream: e.stream.Value(), Partition: e.source, Offset: e.from}, Last: e.from + e.span,
		Tried: int(e.tried), Replay: e.replay.Value(),
	}
}
