package score

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// Partitions move between scorers while events arrive and champions change.
func TestPartitionsMove(t *testing.T) {
	w := newWorld(t, 4)
	w.bots(8)
	r := rand.New(rand.NewPCG(1, 1))
	running := []*process{w.open(scorer()), w.open(scorer())}
	const rounds, each = 6, 400
	var sending sync.WaitGroup
	for round := range rounds {
		sending.Go(func() { w.publish(batchOf(round*each, each, 8)...) })
		model := fmt.Sprint("m/bot-", round%8)
		w.register(model, 2)
		w.promote(model, 2, 1, 1)
		if i := r.IntN(len(running)); len(running) > 1 && r.IntN(2) == 0 {
			running[i].close()
			running = append(running[:i], running[i+1:]...)
		} else {
			running = append(running, w.open(scorer()))
		}
		sending.Wait()
	}
	w.judge(rounds * each)
}

// If the laptop's Kafka is killed at the wrong moment, it can show outputs whose offsets are
// not committed. The next owner does not send them again.
func TestATornTransactionIsReadBack(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(2)
	w.publish(batchOf(0, 50, 2)...)
	p := w.open(scorer())
	w.judge(50)
	p.close()
	w.publish(batchOf(50, 50, 2)...)
	for _, in := range w.outputs(streamIn)[50:70] {
		out := w.outputOf(in)
		if in.at.Offset == 69 { // the log has since given this offset to another event
			out.Extensions[2].Value = "another"
			out.ID += "0000"
		}
		_, err := w.p.Publish(t.Context(), streamOut, &out)
		w.must(err)
	}
	again := w.open(scorer())
	w.poll("the rest is scored", func() bool { at := again.s.Standing(); return at.Events >= 50 && at.Skipped+at.Scored >= 50 }) // some events may have been parked first
	if at := again.s.Standing(); at.Events != 50 || at.Skipped != 19 || at.Scored != 31 {
		t.Errorf("the standing is %+v", at)
	}
	seen := map[string]int{}
	for _, out := range w.waitEvents(streamOut, 101) {
		seen[out.ID]++
	}
	for offset := range 100 {
		if id := fmt.Sprint(streamIn, "/0/", offset); seen[id] != 1 {
			t.Errorf("%s was scored %d times", id, seen[id])
		}
	}
	again.close()
	w.open(scorer()).close() // no outputs are left to be found
}

// outputOf returns the output that a scorer would send.
func (w *world) outputOf(in scoredEvent) broker.View {
	return broker.View{ID: fmt.Sprintf("%s/%d/%d", streamIn, in.at.Partition, in.at.Offset), Source: w.names.Source("scorer/s"), Type: tidemill.TypeScored, Subject: in.Subject,
		DataContentType: "application/json", Data: []byte(`{"label":"la","score":1,"scores":{"la":1,"lb":0,"lc":0}}`), Key: in.Key,
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: "m/" + in.Subject}, {Name: tidemill.AttrModelVersion, Value: "1"},
			{Name: tidemill.AttrCausationID, Value: in.ID}, {Name: tidemill.AttrCausationSource, Value: in.Source}}}
}

// A note with the sum of the places makes its next owner wait for all facts. Facts that are lost since
// then are an error that says what to do.
func TestANoteWithASumIsTakenOver(t *testing.T) {
	w := newWorld(t, 1)
	w.bots(2)
	s := w.addOutputs().still()
	total := int64(0)
	ends, err := w.b.Ends(t.Context(), tidemill.StreamFacts)
	w.must(err)
	for _, end := range ends {
		total += end.Offset
	}
	for _, c := range []struct {
		total int64
		lost  bool
	}{{total, false}, {total + 1, true}} {
		places := make([]int64, 4096)
		for i := range places {
			places[i] = 1 << 40 // so that they do not fit
		}
		facts := factsText(places)
		facts.text = base64.RawStdEncoding.EncodeToString(binary.AppendVarint(nil, c.total))
		note := offsetNote{mark: noMark}.text(facts)
		_, err := s.assigned(t.Context(), []broker.Position{{Stream: streamIn, Note: note}})
		if !c.lost {
			w.must(err)
		} else if err == nil || !strings.Contains(err.Error(), "scorer-stops.md") {
			t.Errorf("with the sum %d of %d: %v", c.total, total, err)
		}
	}
}
