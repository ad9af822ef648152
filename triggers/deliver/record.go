package deliver

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
)

// headerParked marks an event on a .parked stream as a parked item. It is a header of the
// record and not an attribute, so the event itself is unchanged.
const headerParked = "tidemill-parked"

// record is the header of a parked item.
type record struct {
	trigger string
	source  int64 // offset of the event on its stream
	first   millis
	due     millis
	next    int64 // source offset that its transaction committed up to; 0 if it committed none
	replay  string
	letter  string // dead letter that is replayed
	tries   int
	past    []Attempt // attempts; decoded on demand by history
	rest    []byte
}

const recordVersion = 1

// encode writes the header. Numbers and names come first and the history last,
// because a rebuild reads a million headers and none of their histories.
func (r *record) encode() ([]byte, error) {
	b := []byte{recordVersion}
	for _, n := range []int64{r.source, int64(r.first), int64(r.due), r.next, int64(r.tries)} {
		b = parked.AppendNumber(b, n)
	}
	for _, s := range []string{r.trigger, r.replay, r.letter} {
		b = parked.AppendText(b, s)
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

// maxHistory bounds the history that is added to an event of the largest size. A control
// character in an answer takes six bytes.
const maxHistory = 48 << 10

// terse returns a history without the subscriber's answers.
func terse(past []Attempt) []Attempt {
	short := slices.Clone(past)
	for n := range short {
		short[n].Answer, short[n].Error = "", strings.ToValidUTF8(short[n].Error[:min(len(short[n].Error), 200)], "")
	}
	return short
}

// decode reads a header, except its history.
func (r *record) decode(b []byte) error {
	in := parked.Read(b, recordVersion)
	r.source, r.first, r.due, r.next, r.tries = in.Number(), millis(in.Number()), millis(in.Number()), in.Number(), int(in.Number())
	r.trigger, r.replay, r.letter = in.Text(), in.Text(), in.Text()
	r.rest, r.past = in.Rest(), nil
	if in.Err() == nil && r.trigger == "" {
		return parked.ErrHeader
	}
	return in.Err()
}

// history decodes the attempts.
func (r *record) history() error {
	if len(r.rest) == 0 {
		return nil
	}
	if err := json.Unmarshal(r.rest, &r.past); err != nil {
		return fmt.Errorf("%w: its attempts: %w", parked.ErrHeader, err)
	}
	r.rest = nil
	return nil
}

// recordOf returns the header of a parked event; nil if it has none.
func recordOf(v *broker.View) []byte { return parked.Find(v, headerParked) }

// wrap returns the event as it is parked. A publisher's header of the same name is
// removed, so that it does not look like ours.
func (r *record) wrap(v *broker.View) (broker.View, error) {
	b, err := r.encode()
	if err != nil {
		return broker.View{}, err
	}
	w := *v
	w.Foreign = parked.Strip(v.Foreign, headerParked)
	return parked.Wrap(&w, headerParked, b)
}

// settledOf is the data of tidemill.parked.settled.
type settledOf struct {
	Settled []settledItems `json:"settled"`
}

// settledItems are ended items of one trigger.
type settledItems struct {
	Trigger string  `json:"trigger"`
	Replay  string  `json:"replay,omitempty"`
	Offsets []int64 `json:"offsets"`
}

// encodeSettled encodes ended items, which are in the order of trigger and replay.
func (p *partition) encodeSettled(all []endedItem) ([]byte, error) {
	var out settledOf
	for _, e := range all {
		n := len(out.Settled) - 1
		replay := p.replays.name(e.ref.replay)
		if n < 0 || out.Settled[n].Trigger != e.trigger.name || out.Settled[n].Replay != replay {
			out.Settled = append(out.Settled, settledItems{Trigger: e.trigger.name, Replay: replay})
			n++
		}
		out.Settled[n].Offsets = append(out.Settled[n].Offsets, e.ref.source)
	}
	return json.Marshal(out)
}

func decodeSettled(data []byte) ([]settledItems, error) {
	var in settledOf
	err := json.Unmarshal(data, &in)
	return in.Settled, err
}

// replays numbers the replays that a partition has items of.
type replays struct {
	names   []string
	numbers map[string]uint32
}

func newReplays() replays { return replays{names: []string{""}, numbers: map[string]uint32{"": 0}} }

func (r *replays) number(name string) uint32 {
	n, known := r.numbers[name]
	if !known {
		n = uint32(len(r.names))
		r.names = append(r.names, name)
		r.numbers[name] = n
	}
	return n
}

func (r *replays) name(number uint32) string { return r.names[number] }
