package score

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"tidemill.dev/broker"
)

// headerHeld makes an event on a scorer's parked stream one that waits. It is a
// header of the record and no attribute, so the event stays as it was.
const headerHeld = "tidemill-held"

const heldVersion = 1

var errHeld = errors.New("the header of a parked event cannot be read")

// heldHeader is what the header says: where the event lay, when it came there, how
// often it had been parked before, and its key.
type heldHeader struct {
	offset int64
	logged int64 // milliseconds
	copy   uint16
	key    string
}

func (x *heldHeader) encode() []byte {
	b := make([]byte, 0, 24+len(x.key))
	b = append(b, heldVersion)
	b = binary.AppendUvarint(b, uint64(x.copy))
	b = binary.AppendUvarint(b, uint64(x.offset))
	b = binary.AppendUvarint(b, uint64(max(x.logged, 0)))
	return append(b, x.key...)
}

func readHeldHeader(b []byte) (x heldHeader, err error) {
	if len(b) == 0 || b[0] != heldVersion {
		return x, fmt.Errorf("%w: it was written by another version of Tidemill; run that one until nothing is parked", errHeld)
	}
	b = b[1:]
	var numbers [3]uint64
	for i := range numbers {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > math.MaxInt64 {
			return x, errHeld
		}
		numbers[i], b = n, b[size:]
	}
	return heldHeader{copy: uint16(numbers[0]), offset: int64(numbers[1]), logged: int64(numbers[2]), key: string(b)}, nil
}

// headerOf finds the header; nil if there is none. The last counts, for what the
// publisher wrote stands before it.
func headerOf(v *broker.View) []byte {
	for i := len(v.Foreign) - 1; i >= 0; i-- {
		if v.Foreign[i].Key == headerHeld {
			return v.Foreign[i].Value
		}
	}
	return nil
}

// withHeader is the event as it is parked; without is the event as it came. One
// that a publisher gave such a header keeps it.
func withHeader(v *broker.View, value []byte) broker.View {
	w := *v
	w.Foreign = append(slices.Clip(v.Foreign), broker.Header{Key: headerHeld, Value: value})
	return w
}

func withoutHeader(v broker.View) broker.View {
	for i := len(v.Foreign) - 1; i >= 0; i-- {
		if v.Foreign[i].Key == headerHeld {
			v.Foreign = slices.Delete(v.Foreign, i, i+1)
			return v
		}
	}
	return v
}

// returnedData is the data of tidemill.scorer.returned: parked events that have
// been dealt with in the same transaction. It counts if the note beside the offset
// has come to its serial number, and no later one says that it is void.
type returnedData struct {
	Serial  int64      `json:"serial"`
	Offsets [][2]int64 `json:"offsets"`        // on the same partition: first and last
	Void    []int64    `json:"void,omitempty"` // offsets of such records
}

func readReturned(data []byte) (r returnedData, err error) {
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read which parked events have been dealt with: %w", err)
	}
	return r, nil
}

// ranges are offsets put together where they follow each other. They are sorted.
func ranges(offsets []int64) (all [][2]int64) {
	slices.Sort(offsets)
	for _, at := range offsets {
		if n := len(all); n > 0 && all[n-1][1]+1 >= at {
			all[n-1][1] = at
			continue
		}
		all = append(all, [2]int64{at, at})
	}
	return all
}
