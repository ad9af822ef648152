package score

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/triggers/letters"
)

// letter is the dead letter of an event that cannot be scored. Its id follows
// from the event and its place, so whoever writes it again writes the same.
func (s *session) letter(it *item) (broker.View, error) {
	if it.held != nil && it.held.err != nil {
		return s.gone(it)
	}
	place := broker.Position{Stream: s.conf.From, Partition: it.turn.tenure.partition, Offset: it.offset}
	return letters.New(s.o.Names, place, it.v, letters.Details{Scorer: s.conf.Name, Group: Group(s.conf.Name), Reason: it.reason.Error()}, time.Now())
}

// gone is the letter of an event that was parked and can be read no more. It says
// where the event lay at first.
func (s *session) gone(it *item) (broker.View, error) {
	t := it.turn.tenure
	data, err := json.Marshal(letters.Letter{Scorer: s.conf.Name, DeadLetter: broker.DeadLetter{Stream: s.conf.From, Partition: t.partition,
		Offset: it.offset, Last: it.offset, Group: Group(s.conf.Name), Reason: it.reason.Error()}})
	if err != nil {
		return broker.View{}, fmt.Errorf("write a dead letter: %w", err)
	}
	return broker.View{ID: tidemill.ID("dead-letter", Group(s.conf.Name), s.conf.From, strconv.Itoa(int(t.partition)), strconv.FormatInt(it.offset, 10)),
		Source: s.source, Type: tidemill.TypeEventDeadLettered, Time: time.Now().UTC().Format(time.RFC3339Nano), DataContentType: "application/json",
		DataSchema: tidemill.Schema(tidemill.TypeEventDeadLettered), Data: data,
		Extensions: []broker.Attribute{{Name: tidemill.AttrScorer, Value: s.conf.Name}}}, nil
}
