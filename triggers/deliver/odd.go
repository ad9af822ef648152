package deliver

import (
	"bytes"
	"encoding/gob"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// headerOdd holds the attributes of a parked event that may be read and not be
// published. Readers are lenient: what another client wrote, with a control
// character in its subject or as many headers as a record may have, is delivered
// as well as it can be. It can wait too, or a single one would keep all that is
// behind it from being parked, for ever.
const headerOdd = "tidemill-odd"

// disguise makes an event that may be published out of one that may not. Key and
// data stay in their places, for there may be much of them.
func disguise(v *broker.View) (broker.View, error) {
	inside := *v
	inside.Key, inside.Data = nil, nil
	var b bytes.Buffer // gob, for as JSON a control character takes six times its room, and there is little: see broker's companion
	if err := gob.NewEncoder(&b).Encode(&inside); err != nil {
		return broker.View{}, fmt.Errorf("park an event that may not be published: %w", err)
	}
	return broker.View{ID: tidemill.ID("odd", v.Source, v.ID), Source: "/tidemill/odd", Type: "odd", Key: v.Key, Data: v.Data,
		Foreign: []broker.Header{{Key: headerOdd, Value: b.Bytes()}}}, nil
}

// undisguise is the event itself again. Only what has a header of ours beside it
// is asked, and that takes this one off what others wrote: see strip.
func undisguise(v *broker.View) error {
	for _, h := range v.Foreign {
		if h.Key != headerOdd {
			continue
		}
		inside := broker.View{}
		if err := gob.NewDecoder(bytes.NewReader(h.Value)).Decode(&inside); err != nil {
			return fmt.Errorf("%w: its attributes: %w", errRecord, err)
		}
		inside.Key, inside.Data = v.Key, v.Data
		*v = inside
		return nil
	}
	return nil
}
