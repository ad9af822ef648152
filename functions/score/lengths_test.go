package score

import (
	"encoding/json"
	"fmt"
	"testing"

	"tidemill.dev/broker"
)

// echoModel returns a model whose answer is its input with negative values set to zero. The input
// has any length.
func echoModel() []byte {
	dims := proto{}.bytes(1, proto{}.text(2, "N")).bytes(1, proto{}.text(2, "M"))
	of := proto{}.bytes(1, proto{}.number(1, 1).bytes(2, dims))
	graph := proto{}.bytes(1, node("Relu", "y", "x")).text(2, "open").
		bytes(11, proto{}.text(1, "x").bytes(2, of)).bytes(12, proto{}.text(1, "y").bytes(2, of))
	return proto{}.number(1, 8).bytes(7, graph).bytes(8, proto{}.number(2, 13))
}

// If a model leaves a length open, events of different lengths in one batch are scored correctly.
func TestEventsOfDifferentLengthsDoNotDisturbEachOther(t *testing.T) {
	w := newWorld(t, 1)
	w.first("m/bot-0")
	w.model(artifactOf("m/bot-0", 1), echoModel())
	var events []broker.View
	for n := range 30 {
		v := message("bot-0", n)
		x, err := json.Marshal(make([]int, n/3%4+1))
		w.must(err)
		v.Data = fmt.Appendf(nil, `{"x":%s}`, x)
		events = append(events, v)
	}
	w.publish(events...)
	w.open(scorer())
	for n, out := range w.waitEvents(streamOut, len(events)) {
		var data Scored
		if err := json.Unmarshal(out.Data, &data); err != nil || len(data.Values) != n/3%4+1 {
			t.Errorf("event %d: %s: %v", n, out.Data, err)
		}
	}
}
