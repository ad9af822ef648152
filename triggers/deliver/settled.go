package deliver

import "encoding/json"

// settledOf is the data of tidemill.parked.settled.
type settledOf struct {
	Settled []settledItems `json:"settled"`
}

// settledItems are items of one trigger that are over.
type settledItems struct {
	Trigger string  `json:"trigger"`
	Replay  string  `json:"replay,omitempty"`
	Offsets []int64 `json:"offsets"`
}

// encodeSettled writes down what is over. It comes in order of trigger and
// replay.
func (p *partition) encodeSettled(all []ending) ([]byte, error) {
	var out settledOf
	for _, e := range all {
		n := len(out.Settled) - 1
		replay := p.replays.name(e.rec.replay)
		if n < 0 || out.Settled[n].Trigger != e.line.name || out.Settled[n].Replay != replay {
			out.Settled = append(out.Settled, settledItems{Trigger: e.line.name, Replay: replay})
			n++
		}
		out.Settled[n].Offsets = append(out.Settled[n].Offsets, e.rec.source)
	}
	return json.Marshal(out)
}

func decodeSettled(data []byte) ([]settledItems, error) {
	var in settledOf
	err := json.Unmarshal(data, &in)
	return in.Settled, err
}
