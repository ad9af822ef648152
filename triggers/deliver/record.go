package deliver

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"tidemill.dev/broker"
)

// headerParked makes an event on a .parked stream a parked item. It is a header
// of the record and no attribute, so the event stays as it was.
const headerParked = "tidemill-parked"

// record is what a parked item's record tells besides the event.
type record struct {
	trigger string
	source  int64 // offset of the event on its stream
	first   moment
	due     moment
	next    int64 // the source offset that its transaction committed up to; 0 if it did not
	replay  string
	letter  string // the dead letter that the replay is of
	tries   int
	past    []Attempt // read on demand, see history
	rest    []byte
}

const recordVersion = 1

// encode writes the header. Numbers and names come first and the history last:
// a rebuild reads a million of them, and none of their histories.
func (r *record) encode() ([]byte, error) {
	b := []byte{recordVersion}
	for _, n := range []int64{r.source, int64(r.first), int64(r.due), r.next, int64(r.tries)} {
		b = binary.AppendUvarint(b, uint64(max(n, 0)))
	}
	for _, s := range []string{r.trigger, r.replay, r.letter} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	if len(r.past) == 0 {
		return b, nil
	}
	past, err := json.Marshal(r.past)
	if err == nil && len(past) > maxHistory {
		past, err = json.Marshal(terse(r.past))
	}
	if err != nil {
		return nil, fmt.Errorf("write down %d attempts: %w", len(r.past), err)
	}
	return append(b, past...), nil
}

// maxHistory is what a history may add to an event that is as large as its
// stream allows. Control characters in answers take six times their size.
const maxHistory = 48 << 10

// terse is a history without what the subscriber said.
func terse(past []Attempt) []Attempt {
	short := slices.Clone(past)
	for n := range short {
		short[n].Answer, short[n].Error = "", strings.ToValidUTF8(short[n].Error[:min(len(short[n].Error), 200)], "")
	}
	return short
}

var errRecord = errors.New("the header of a parked event cannot be read")

// decode reads a header, all but its history.
func (r *record) decode(b []byte) error {
	if len(b) == 0 || b[0] != recordVersion {
		return fmt.Errorf("%w: it was written by another version of Tidemill; run that one until nothing is parked", errRecord)
	}
	b = b[1:]
	var tries int64
	first, due := int64(0), int64(0)
	for _, n := range []*int64{&r.source, &first, &due, &r.next, &tries} {
		v, size := binary.Uvarint(b)
		if size <= 0 || int64(v) < 0 {
			return errRecord
		}
		*n, b = int64(v), b[size:]
	}
	for _, s := range []*string{&r.trigger, &r.replay, &r.letter} {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return errRecord
		}
		*s, b = string(b[size:size+int(n)]), b[size+int(n):]
	}
	if r.trigger == "" {
		return errRecord
	}
	r.first, r.due, r.tries, r.rest, r.past = moment(first), moment(due), int(tries), b, nil
	return nil
}

// history reads what decode has left.
func (r *record) history() error {
	if len(r.rest) == 0 {
		return nil
	}
	if err := json.Unmarshal(r.rest, &r.past); err != nil {
		return fmt.Errorf("%w: its attempts: %w", errRecord, err)
	}
	r.rest = nil
	return nil
}

// recordOf finds the header of a parked event; nil if it has none. The last
// counts, as everywhere.
func recordOf(v *broker.View) []byte {
	for n := len(v.Foreign) - 1; n >= 0; n-- {
		if v.Foreign[n].Key == headerParked {
			return v.Foreign[n].Value
		}
	}
	return nil
}

// strip takes what is ours off a parked event, and what a publisher may have
// put there to look like it. The view's own list of headers is not touched.
func strip(headers []broker.Header) []broker.Header {
	ours := func(h broker.Header) bool { return h.Key == headerParked || h.Key == headerOdd }
	if !slices.ContainsFunc(headers, ours) {
		return headers
	}
	return slices.DeleteFunc(slices.Clone(headers), ours)
}

// wrap makes the event that is parked out of the event and its record.
func (r *record) wrap(v *broker.View) (broker.View, error) {
	b, err := r.encode()
	if err != nil {
		return broker.View{}, err
	}
	w := *v
	w.Foreign = append(slices.Clip(strip(v.Foreign)), broker.Header{Key: headerParked, Value: b})
	if w.Validate() == nil {
		return w, nil
	}
	w.Foreign = strip(v.Foreign)
	if w, err = disguise(&w); err != nil {
		return broker.View{}, err
	}
	w.Foreign = append(w.Foreign, broker.Header{Key: headerParked, Value: b})
	return w, nil
}

// viewSize is about what a view takes.
func viewSize(v *broker.View) int {
	n := 256 + len(v.ID) + len(v.Source) + len(v.Type) + len(v.Subject) + len(v.Data) + len(v.Key) + len(v.DataSchema)
	for _, x := range v.Extensions {
		n += 32 + len(x.Value)
	}
	for _, h := range v.Foreign {
		n += 32 + len(h.Value)
	}
	return n
}
