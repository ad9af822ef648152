package broker

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"tidemill.dev/broker/internal/wire"
)

// A note is a text of the caller's that is committed beside a partition's offset,
// for whoever reads on from there. Kafka keeps 4,096 bytes beside an offset, for
// the note and for what has ended beyond the watermark; where the two do not fit
// the note stays, since the other only saves work.
//
// Written is notePrefix, the note's length, a colon, the note, and then what there
// would be without a note. A later layout has another prefix.
const (
	notePrefix = "note1:"

	// MaxNote is how many bytes a note may have.
	MaxNote = 2000
)

// encodeBeside writes what is committed beside an offset.
func encodeBeside(offset int64, note string, spans []span) string {
	ended := encodeEnded(offset, spans)
	if note == "" {
		return ended
	}
	return notePrefix + strconv.Itoa(len(note)) + ":" + note + ended
}

// decodeBeside reads what encodeBeside wrote, or encodeEnded before there were
// notes. Metadata of another kind says nothing.
func decodeBeside(offset int64, metadata string) (note string, spans []span) {
	if text, noted := strings.CutPrefix(metadata, notePrefix); noted {
		length, rest, _ := strings.Cut(text, ":")
		n, err := strconv.Atoi(length)
		if err != nil || n < 0 || n > len(rest) {
			return "", nil
		}
		note, metadata = rest[:n], rest[n:]
	}
	return note, decodeEnded(offset, metadata)
}

// beside is what to commit beside an offset of the partition's. Bare is without
// what has ended beyond it. Called with the lock held.
func (p *inPartition) beside(offset int64, bare bool) string {
	if bare {
		return encodeBeside(offset, p.note, nil)
	}
	return encodeBeside(offset, p.note, spansFrom(p.endedSpans(), offset))
}

// errNoteTooLarge says that this Kafka keeps less than others do.
var errNoteTooLarge = errors.New("the note alone is more than Kafka keeps beside an offset; raise its offset.metadata.max.bytes")

func checkNote(text string) error {
	switch {
	case len(text) > MaxNote:
		return fmt.Errorf("it has %d bytes, and may have %d: say less", len(text), MaxNote)
	case !utf8.ValidString(text):
		return errors.New("it is no UTF-8; encode it")
	}
	return nil
}

// Note changes the text that is committed beside a partition's offset, from the
// next commit on, which comes within CommitEvery also if nothing else has moved.
// It may come to stand beside an offset that is committed before what is Done
// now, and it is committed beside every later one; so say what holds for both,
// and say it before ending the events that it speaks of. No text is none. An
// error says that the partition is not read here, or what is wrong with the text.
//
// When a transaction fails that has the partition, what was not committed is
// forgotten, and Assigned is told what was.
func (c *Consumer) Note(stream string, partition int32, text string) error {
	p, err := c.noted(stream, partition, text)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return fmt.Errorf("note beside %s/%d: %w", stream, partition, errTakenAway)
	}
	p.note = text
	return nil
}

// noted is the partition that a note belongs to.
func (c *Consumer) noted(stream string, partition int32, text string) (*inPartition, error) {
	err := checkNote(text)
	if c.member == nil {
		err = errors.New("without a group there is nothing that it could stand beside")
	}
	if err != nil {
		return nil, fmt.Errorf("note beside %s/%d: %w", stream, partition, err)
	}
	c.mu.Lock()
	p := c.parts[wire.TopicPartition{Topic: c.b.names.Topic(stream), Partition: partition}]
	c.mu.Unlock()
	if p == nil {
		return nil, fmt.Errorf("note beside %s/%d: %w", stream, partition, errTakenAway)
	}
	return p, nil
}

// txNote is a note that a transaction commits.
type txNote struct {
	p     *inPartition
	epoch uint64
	text  string
}

// Note commits a text beside a partition's offset inside the transaction; it
// stays there until another is given. If the transaction has no delivery of the
// partition, the offset stays where the partition's first open event is. If the
// partition is not this consumer's, or ceases to be before the offsets are
// committed, the transaction fails; and if it fails, the partition is taken back
// as that of a delivery is. The last of several notes of one partition counts.
func (x *Tx) Note(stream string, partition int32, text string) {
	p, err := x.t.c.noted(stream, partition, text)
	if err != nil {
		x.p.tx.poison(err)
		return
	}
	p.mu.Lock()
	note, gone := txNote{p, p.epoch, text}, p.gone
	p.mu.Unlock()
	if gone {
		x.p.tx.poison(fmt.Errorf("note beside %s/%d: %w", stream, partition, errTakenAway))
		return
	}
	if x.notes == nil {
		x.notes = map[wire.TopicPartition]txNote{}
	}
	x.notes[p.tp] = note
}

// annotate adds a transaction's notes to the places that it commits, and the
// places of those partitions that it has no deliveries of.
func (x *Tx) annotate(places map[wire.TopicPartition]*txPlace) error {
	for tp, n := range x.notes {
		place := places[tp]
		switch {
		case place == nil:
			places[tp] = &txPlace{p: n.p, epoch: n.epoch, note: &n.text}
		case place.p != n.p || place.epoch != n.epoch:
			return fmt.Errorf("note beside %s/%d: %w", n.p.stream, tp.Partition, errTakenAway)
		default:
			place.note = &n.text
		}
	}
	return nil
}
