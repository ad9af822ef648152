package lineage_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/models/lineage"
)

const scoringFile = `version: 1
name: test
streams:
  messages: {partitions: 2}
  scored: {partitions: 2}
  moods: {partitions: 1}
scorers:
  intents: {from: messages, to: scored, model: "intent/{key}", map: {text: data.text}}
  tones: {from: messages, to: moods, model: "tone/{key}", map: {text: data.text}}
`

// scoring gives a world streams, scorers, and some messages.
func (w *world) scoring() (send func(stream string, partition int32, v *broker.View) broker.Position) {
	w.Helper()
	w.config = must1(config.Parse("tidemill.yaml", []byte(scoringFile)))(w)
	must1(w.broker.EnsureStreams(w.Context(), []broker.StreamSpec{{Name: "messages", Partitions: 2}, {Name: "scored", Partitions: 2}, {Name: "moods", Partitions: 1}}, broker.EnsureOptions{}))(w)
	p := must1(w.broker.Producer(broker.ProducerOptions{}))(w)
	w.Cleanup(func() { _ = p.Close(w.Context()) })
	return func(stream string, partition int32, v *broker.View) broker.Position {
		w.Helper()
		type lies struct {
			at  broker.Receipt
			err error
		}
		done := make(chan lies, 1)
		p.SendTo(w.Context(), stream, partition, v, func(r broker.Receipt, err error) { done <- lies{r, err} })
		l := <-done
		w.must(l.err)
		return broker.Position{Stream: stream, Partition: partition, Offset: l.at.Offset}
	}
}

func (w *world) message(id string) *broker.View {
	return &broker.View{ID: id, Source: "/chat", Type: "message", Subject: "bot-1", Time: time.Now().UTC().Format(time.RFC3339Nano), Data: []byte(`{"text":"hi"}`)}
}

func (w *world) answer(scorer, id, model, version string) *broker.View {
	return &broker.View{ID: id, Source: w.names.Source("scorer/" + scorer), Type: tidemill.TypeScored, Subject: "bot-1", DataContentType: "application/json",
		Time: time.Now().UTC().Format(time.RFC3339Nano), Data: []byte(`{"label":"greet","score":0.93}`), Extensions: []broker.Attribute{{Name: "model", Value: model}, {Name: "modelversion", Value: version},
			{Name: "causationid", Value: "m-3"}, {Name: "causationsource", Value: "/chat"}}}
}

func TestAnAnswerIsExplained(t *testing.T) {
	w := newWorld(t)
	send := w.scoring()
	for _, id := range []string{"m-0", "m-1", "m-2", "m-3"} {
		send("messages", 1, w.message(id))
	}
	for _, id := range []string{"messages/1/0", "messages/1/1", "messages/1/3"} {
		send("scored", 1, w.answer("intents", id, "intent/bot-1", "7"))
	}
	const source = "event//tidemill/test/scorer/intents#messages/1/3"
	for _, of := range []string{"event/messages/1/3", source} {
		g := w.graphOf(of)
		if n := g.Nodes[0]; n.ID != source || !strings.Contains(strings.Join(n.Says, " "), "greet, 0.9300") {
			t.Errorf("%s: %+v", of, n)
		}
		g.checkEdge("event//chat#m-3", api.EdgeCaused, source)
		g.checkEdge("model/intent/bot-1@7", api.EdgeScored, source)
	}
	unscored := w.graphOf("event/messages/1/2")
	if unscored.Nodes[0].ID != "event//chat#m-2" || len(unscored.Notes) != 2 || !strings.Contains(unscored.Notes[0], "scorer intents has no answer") {
		t.Errorf("%+v", unscored)
	}
	send("moods", 0, w.answer("tones", "messages/1/3", "tone/bot-1", "2"))
	if both := w.graphOf("event/messages/1/3"); !strings.Contains(strings.Join(both.Notes, " "), "event//tidemill/test/scorer/tones#messages/1/3 is another scorer's") {
		t.Errorf("notes %q", both.Notes)
	}
}

// An answer that does not exist, or that the caller may not read, is not known. Another event whose
// id looks like a place is found as usual.
func TestAnAnswerThatIsNotThere(t *testing.T) {
	w := newWorld(t)
	send := w.scoring()
	send("messages", 0, w.message("m-0"))
	for _, of := range []string{"event/messages/0/1", "event/messages/9/0", "event/nothing/0/0"} {
		if _, err := lineage.Of(t.Context(), w.sources(), of); !errors.Is(err, lineage.ErrUnknown) {
			t.Errorf("%s: %v", of, err)
		}
	}
	w.mayRead = func(key string) bool { return key != "bot-1" }
	if _, err := lineage.Of(t.Context(), w.sources(), "event/messages/0/0"); !errors.Is(err, lineage.ErrUnknown) {
		t.Errorf("another's event: %v", err)
	}
}
