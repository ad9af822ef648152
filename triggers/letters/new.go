package letters

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// MaxBytes is how large a dead letter may be; a producer of letters sets it as
// its MaxEvent. The stream takes a little more.
const MaxBytes = 8 << 20

// Details say why an event became a dead letter.
type Details struct {
	Trigger     string
	Scorer      string // that could not score it; then there is no trigger
	Group       string // of the consumer that read it
	Reason      string
	Tried       int // attempts in all
	Attempts    []Attempt
	Destination string // the URL that did not take it
	Replay      string // the act that asked for this delivery
	Letter      string // the id of the dead letter that this delivery was to make good
}

// New is the dead letter of an event that a trigger's subscriber did not get, or
// that a scorer could not score.
// Its id follows from the event, its place, the trigger and the replay: who
// writes it again writes the same letter.
func New(names tidemill.Names, place broker.Position, original *broker.View, d Details, now time.Time) (broker.View, error) {
	v := Of(names, letterID(place, original, d), d.Trigger, original)
	if d.Scorer != "" {
		v.Source = names.Source(ofScorer + d.Scorer)
		v.Extensions = append(slices.DeleteFunc(v.Extensions, func(a broker.Attribute) bool { return a.Name == tidemill.AttrTrigger }),
			broker.Attribute{Name: tidemill.AttrScorer, Value: d.Scorer})
	}
	v.Time = now.UTC().Format(time.RFC3339Nano)
	v.Extensions = append(v.Extensions, knative(d)...)
	l := Letter{
		DeadLetter: broker.DeadLetter{Stream: place.Stream, Partition: place.Partition, Offset: place.Offset, Last: place.Offset,
			Group: d.Group, Reason: d.Reason, Record: broker.RecordOf(original)},
		Trigger: d.Trigger, Scorer: d.Scorer, OriginalID: original.ID, OriginalSource: original.Source, OriginalType: original.Type, OriginalSubject: original.Subject,
		Tried: d.Tried, Attempts: d.Attempts, Replay: d.Replay,
	}
	var err error
	v.Data, err = fit(&l)
	if err != nil {
		return broker.View{}, fmt.Errorf("write the dead letter of event %s for trigger %s: %w", original.ID, d.Trigger, err)
	}
	return v, nil
}

// ofScorer begins the source of a scorer.
const ofScorer = "scorer/"

// Of is a letter less what it tells: its attributes and its key, as they follow
// from the event. It is all that a receipt asks of its letter.
func Of(names tidemill.Names, id, trigger string, original *broker.View) broker.View {
	v := broker.View{
		ID:              id,
		Source:          names.Source("dispatcher"),
		Type:            tidemill.TypeEventDeadLettered,
		Subject:         original.Subject,
		DataContentType: "application/json",
		DataSchema:      tidemill.Schema(tidemill.TypeEventDeadLettered),
		Key:             original.Key,
		Extensions:      append(causal(original), broker.Attribute{Name: tidemill.AttrTrigger, Value: trigger}),
	}
	present(&v)
	return v
}

// present takes off a letter what may be read of an event and not be published.
// The record in it tells all of that.
func present(v *broker.View) {
	if v.Validate() == nil {
		return
	}
	odd := func(text string) bool {
		probe := broker.View{ID: "1", Source: "/", Type: "t", Subject: text}
		return probe.Validate() != nil
	}
	if odd(v.Subject) {
		v.Subject = ""
	}
	v.Extensions = slices.DeleteFunc(v.Extensions, func(a broker.Attribute) bool { return odd(a.Value) })
}

// Again is the letter that takes the place of one that an act asked to replay,
// where that cannot even be tried. Its id follows from both.
func Again(letter *broker.View, act, reason string, now time.Time) (broker.View, error) {
	l, err := Read(letter)
	if err != nil {
		return broker.View{}, err
	}
	v := *letter
	v.ID, v.Time = tidemill.ID("dead-letter", letter.ID, act), now.UTC().Format(time.RFC3339Nano)
	l.Reason, l.Replay = reason, act
	if v.Data, err = fit(l); err != nil {
		return broker.View{}, fmt.Errorf("write dead letter %s again: %w", letter.ID, err)
	}
	return v, nil
}

// roomAround is what the attributes of a letter may take beside its data.
const roomAround = 512 << 10

// fit leaves the record out of a letter that would be too large with it.
func fit(l *Letter) ([]byte, error) {
	data, err := json.Marshal(l)
	if err != nil || len(data) <= MaxBytes-roomAround {
		return data, err
	}
	l.Record = nil
	l.Reason += "; the event itself is too large for the dead letters, read it where it lies"
	return json.Marshal(l)
}

func letterID(place broker.Position, original *broker.View, d Details) string {
	who := d.Trigger
	if d.Scorer != "" {
		who = ofScorer + d.Scorer // no trigger's name has a slash
	}
	parts := []string{"dead-letter", who, place.Stream, strconv.Itoa(int(place.Partition)), strconv.FormatInt(place.Offset, 10), d.Replay}
	if d.Letter != "" { // an act may replay several letters of one event
		parts = append(parts, d.Letter)
	}
	return tidemill.Cause{Source: original.Source, ID: original.ID}.Derive(parts...)
}

// causal ties what follows from an event to it. What begins no chain of its own
// carries the chain's name, its trace and the length of its loop on.
func causal(of *broker.View) []broker.Attribute {
	all := []broker.Attribute{
		{Name: tidemill.AttrCausationID, Value: of.ID},
		{Name: tidemill.AttrCausationSource, Value: of.Source},
		{Name: tidemill.AttrCorrelationID, Value: of.ID},
	}
	if chain, ok := of.Attribute(tidemill.AttrCorrelationID); ok && chain != "" {
		all[2].Value = chain
	}
	for _, name := range []string{tidemill.AttrTraceParent, tidemill.AttrTraceState, tidemill.AttrHops} {
		if value, ok := of.Attribute(name); ok && value != "" {
			all = append(all, broker.Attribute{Name: name, Value: value})
		}
	}
	return all
}
