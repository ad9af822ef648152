package score

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// note is what is committed beside a partition's offset: all that its next
// owner must know before it scores.
type note struct {
	facts     []int64 // places among the facts that the versions were known at
	to        int32   // the partition of the output
	from      int64   // outputs of what lies at the offset or behind it lie here or behind it
	mark      heldMark
	committed bool // there is a note
}

// notePrefix names the layout. A layout that is not known is refused rather
// than passed over: whoever wrote it knew something that must not be forgotten.
const notePrefix = "scorer1:"

// factsText is the part of a note that all partitions of a batch share.
func factsText(places []int64) string {
	b := binary.AppendUvarint(nil, uint64(len(places)))
	for _, p := range places {
		b = binary.AppendVarint(b, p)
	}
	return base64.RawStdEncoding.EncodeToString(b)
}

// text writes a note; facts is what factsText wrote.
func (n note) text(facts string) string {
	b := binary.AppendVarint(nil, int64(n.to))
	b = binary.AppendVarint(b, n.from)
	b = binary.AppendVarint(b, n.mark.at)
	b = binary.AppendVarint(b, n.mark.serial)
	return notePrefix + base64.RawStdEncoding.EncodeToString(b) + ":" + facts
}

// parseNote reads a note. No text is no note.
func parseNote(text string) (note, error) {
	if text == "" {
		return note{mark: noMark}, nil
	}
	rest, known := strings.CutPrefix(text, notePrefix)
	own, facts, whole := strings.Cut(rest, ":")
	if !known || !whole {
		return note{}, fmt.Errorf("the note beside the offset, %.40q, is of another version of Tidemill: run that one, or reset the group's offsets", text)
	}
	places, err := varints(own, false)
	if err != nil || len(places) != 4 {
		return note{}, fmt.Errorf("the note beside the offset, %.40q, cannot be read: %w", text, errors.Join(err, errNote))
	}
	all, err := varints(facts, true)
	if err != nil {
		return note{}, fmt.Errorf("the note beside the offset, %.40q, cannot be read: %w", text, err)
	}
	return note{facts: all, to: int32(places[0]), from: places[1], mark: heldMark{places[2], places[3]}, committed: true}, nil
}

var errNote = errors.New("reset the group's offsets; what was scored since may be scored again")

// varints reads numbers, with their count before them perhaps.
func varints(text string, counted bool) ([]int64, error) {
	b, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	want := -1
	if counted {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)) {
			return nil, errNote
		}
		b, want = b[size:], int(n)
	}
	var all []int64
	for len(b) > 0 {
		x, size := binary.Varint(b)
		if size <= 0 {
			return nil, errNote
		}
		all, b = append(all, x), b[size:]
	}
	if want >= 0 && want != len(all) {
		return nil, errNote
	}
	return all, nil
}

// Waits reads from the note beside a partition's offset whether events of it are
// parked that wait for their models. The parked partition's end is behind the
// marker of the transaction that wrote there last.
func Waits(text string, parkedEnd int64) (bool, error) {
	n, err := parseNote(text)
	return err == nil && n.committed && n.mark.at != uncommitted && parkedEnd > n.mark.at+1, err
}
