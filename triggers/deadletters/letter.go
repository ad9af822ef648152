// Package deadletters reads and writes dead letters and their receipts, lists the open
// ones, and selects among them.
package deadletters

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// Letter is the data of tidemill.event.dead-lettered. It has no trigger and no attempts
// if a consumer could not read the event or a scorer could not score it.
type Letter struct {
	broker.DeadLetter

	Trigger         string    `json:"trigger,omitempty"`
	Scorer          string    `json:"scorer,omitempty"`
	OriginalID      string    `json:"originalId,omitempty"`
	OriginalSource  string    `json:"originalSource,omitempty"`
	OriginalType    string    `json:"originalType,omitempty"`
	OriginalSubject string    `json:"originalSubject,omitempty"`
	Tried           int       `json:"tried,omitempty"`    // number of all attempts; the list may leave out those in the middle
	Attempts        []Attempt `json:"attempts,omitempty"` // oldest first
	Replay          string    `json:"replay,omitempty"`   // command that asked for this delivery; empty the first time
}

// Attempt is one try to deliver the event.
type Attempt struct {
	At     time.Time     // beginning
	Took   time.Duration // time until the verdict
	Status int           // HTTP status; 0 without an answer
	Error  string        // reason why the event was not delivered
	Answer string        // first KiB of the answer's body as text
}

// attemptJSON is an attempt in JSON. People read dead letters, so a duration is no
// number of nanoseconds.
type attemptJSON struct {
	At     time.Time `json:"at"`
	Took   string    `json:"took"`
	Status int       `json:"status,omitempty"`
	Error  string    `json:"error,omitempty"`
	Answer string    `json:"answer,omitempty"`
}

// MarshalJSON writes a duration as text such as 1.2s.
func (a Attempt) MarshalJSON() ([]byte, error) {
	return json.Marshal(attemptJSON{a.At.UTC(), a.Took.Round(time.Microsecond).String(), a.Status, a.Error, a.Answer})
}

// UnmarshalJSON reads the output of MarshalJSON.
func (a *Attempt) UnmarshalJSON(b []byte) error {
	var j attemptJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	took, err := time.ParseDuration(j.Took)
	if err != nil {
		return fmt.Errorf("took: %w", err)
	}
	*a = Attempt{j.At, took, j.Status, j.Error, j.Answer}
	return nil
}

// Read decodes a dead letter.
func Read(v *broker.View) (*Letter, error) {
	if v.Type != tidemill.TypeEventDeadLettered {
		return nil, fmt.Errorf("event %s is of type %s and is not a dead letter", v.ID, v.Type)
	}
	var l Letter
	if err := json.Unmarshal(v.Data, &l); err != nil {
		return nil, fmt.Errorf("read dead letter %s: %w", v.ID, err)
	}
	return &l, nil
}

// ErrNoRecord reports that a dead letter does not contain its event, because the event
// was too large. The event may still be at the place that the dead letter names.
var ErrNoRecord = errors.New("the dead letter does not have the event")

// Original returns the event as it was, with its key and foreign headers. It points
// into the dead letter.
func (l *Letter) Original() (broker.View, error) {
	if l.Record == nil {
		return broker.View{}, ErrNoRecord
	}
	return l.Record.View()
}

// Place returns the place of the event.
func (l *Letter) Place() broker.Position {
	return broker.Position{Stream: l.Stream, Partition: l.Partition, Offset: l.Offset}
}

// OfLetter reports whether an event is a dead letter of a dead letter that a trigger's
// subscriber did not accept. Triggers do not get these.
func OfLetter(v *broker.View) bool {
	if v.Type != tidemill.TypeEventDeadLettered {
		return false
	}
	var l struct {
		OriginalType string `json:"originalType"`
	}
	return json.Unmarshal(v.Data, &l) == nil && l.OriginalType == tidemill.TypeEventDeadLettered
}

// Knative sets the same extensions on its dead letters, so that Knative's
// tools also work with ours.
const (
	knativeDest = "knativeerrordest"
	knativeCode = "knativeerrorcode"
	knativeData = "knativeerrordata"
)

// knativeAnswer is the part of an answer that fills Knative's 1,024 characters. It is
// written in base64, so that control characters and encodings do not matter.
const knativeAnswer = 1024 / 4 * 3

func knative(d Details) (all []broker.Attribute) {
	if dest := WithoutSecrets(d.Destination); dest != "" {
		all = append(all, broker.Attribute{Name: knativeDest, Value: dest})
	}
	if len(d.Attempts) == 0 {
		return all
	}
	last := d.Attempts[len(d.Attempts)-1]
	if last.Status != 0 {
		all = append(all, broker.Attribute{Name: knativeCode, Value: strconv.Itoa(last.Status)})
	}
	if answer := last.Answer; answer != "" {
		answer = answer[:min(len(answer), knativeAnswer)]
		all = append(all, broker.Attribute{Name: knativeData, Value: base64.StdEncoding.EncodeToString([]byte(answer))})
	}
	return all
}

// WithoutSecrets returns a URL without the parts that may contain a password or a
// token.
func WithoutSecrets(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	u.User, u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = nil, "", false, "", ""
	return u.String()
}

// MaxBytes is the size limit of a dead letter; its producers set it as MaxEvent. The
// stream accepts a little more.
const MaxBytes = 8 << 20

// Details say why an event became a dead letter.
type Details struct {
	Trigger     string
	Scorer      string // scorer that could not score it; then there is no trigger
	Group       string // group of the consumer that read it
	Reason      string
	Tried       int // number of all attempts
	Attempts    []Attempt
	Destination string // URL that did not accept it
	Replay      string // command that asked for this delivery
	Letter      string // id of the dead letter that this delivery was a replay of
}

// New returns the dead letter of an event that a subscriber did not get or that a
// scorer could not score. Its id derives from the event, its place, the trigger and the
// replay, so a repeated one has the same id.
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
	v.Data, err = fitToLimit(&l)
	if err != nil {
		return broker.View{}, fmt.Errorf("write the dead letter of event %s for trigger %s: %w", original.ID, d.Trigger, err)
	}
	return v, nil
}

// ofScorer is the prefix of a scorer's source.
const ofScorer = "scorer/"

// Of returns a dead letter without data, with only its attributes and its key. A receipt
// needs nothing else.
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

// present removes attributes from a dead letter that may be read but not published. The
// record in it still has them.
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

// Again returns a new dead letter in place of one whose replay cannot be attempted. Its
// id derives from the dead letter and the command.
func Again(letter *broker.View, act, reason string, now time.Time) (broker.View, error) {
	l, err := Read(letter)
	if err != nil {
		return broker.View{}, err
	}
	v := *letter
	v.ID, v.Time = tidemill.ID("dead-letter", letter.ID, act), now.UTC().Format(time.RFC3339Nano)
	l.Reason, l.Replay = reason, act
	if v.Data, err = fitToLimit(l); err != nil {
		return broker.View{}, fmt.Errorf("write dead letter %s again: %w", letter.ID, err)
	}
	return v, nil
}

// roomAround is the space for a dead letter's attributes, besides its data.
const roomAround = 512 << 10

// fitToLimit leaves out the record of a dead letter that would be too large with it.
func fitToLimit(l *Letter) ([]byte, error) {
	data, err := json.Marshal(l)
	if err != nil || len(data) <= MaxBytes-roomAround {
		return data, err
	}
	l.Record = nil
	l.Reason += "; the event is too large for a dead letter: read it from its stream"
	return json.Marshal(l)
}

func letterID(place broker.Position, original *broker.View, d Details) string {
	who := d.Trigger
	if d.Scorer != "" {
		who = ofScorer + d.Scorer // no trigger's name has a slash
	}
	parts := []string{"dead-letter", who, place.Stream, strconv.Itoa(int(place.Partition)), strconv.FormatInt(place.Offset, 10), d.Replay}
	if d.Letter != "" { // a command may replay several dead letters of one event
		parts = append(parts, d.Letter)
	}
	return tidemill.Cause{Source: original.Source, ID: original.ID}.Derive(parts...)
}

// RecipeOf returns the recipe that an event is about; empty if there is none. A dead letter
// is about the recipe of its event. Dead letters of earlier versions have it only in their
// records.
func RecipeOf(v *broker.View) string {
	recipe, _ := v.Attribute(tidemill.AttrRecipe)
	if recipe != "" || v.Type != tidemill.TypeEventDeadLettered {
		return recipe
	}
	l, err := Read(v)
	if err != nil {
		return ""
	}
	original, err := l.Original()
	if err != nil {
		return ""
	}
	return RecipeOf(&original)
}

// causal returns the attributes that link an event to its cause: the correlation, the
// trace and the number of hops. It also returns the recipe, because the recipe decides
// which callers may see the event.
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
	if recipe := RecipeOf(of); recipe != "" {
		all = append(all, broker.Attribute{Name: tidemill.AttrRecipe, Value: recipe})
	}
	return all
}

// Action is the way in which a dead letter was handled.
type Action string

// Outcome is the result of the action.
type Outcome string

// The actions and their outcomes. A replay that fails again also resolves the dead
// letter, because a new one replaces it.
const (
	Replayed Action = "replayed"
	Dropped  Action = "dropped"

	Delivered    Outcome = "delivered"
	FailedAgain  Outcome = "failed again"
	DroppedByAct Outcome = "dropped"
)

// Receipt is the data of tidemill.event.resolved. A dead letter stays in the list until
// it has a receipt; the first one counts.
type Receipt struct {
	Letter    string  `json:"letter"`    // id of the dead letter
	Partition int32   `json:"partition"` // place of the dead letter
	Offset    int64   `json:"offset"`
	Action    Action  `json:"action"`
	Outcome   Outcome `json:"outcome"`
	Reason    string  `json:"reason,omitempty"`
	By        string  `json:"by,omitempty"`        // person who asked for it
	Command   string  `json:"act,omitempty"`       // command that asked for a replay
	NewLetter string  `json:"newLetter,omitempty"` // new dead letter of a replay that failed again
}

// Resolved returns the receipt of a dead letter. It is written to the dead letter's own
// partition, so that a reader of one partition sees both in order. Its id derives from
// the dead letter and the command, so a repeated one has the same id.
func Resolved(names tidemill.Names, letter *broker.View, r Receipt, now time.Time) (broker.View, error) {
	r.Letter = letter.ID
	data, err := json.Marshal(r)
	if err != nil {
		return broker.View{}, fmt.Errorf("write the receipt of dead letter %s: %w", letter.ID, err)
	}
	v := broker.View{
		ID:              tidemill.ID("receipt", letter.ID, string(r.Action), r.Command),
		Source:          names.Source(writerOf(letter, r.Action)),
		Type:            tidemill.TypeEventResolved,
		Subject:         letter.Subject,
		Time:            now.UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json",
		DataSchema:      tidemill.Schema(tidemill.TypeEventResolved),
		Key:             letter.Key,
		Extensions:      causal(letter),
		Data:            data,
	}
	if trigger, ok := letter.Attribute(tidemill.AttrTrigger); ok && trigger != "" {
		v.Extensions = append(v.Extensions, broker.Attribute{Name: tidemill.AttrTrigger, Value: trigger})
	}
	if r.By != "" {
		v.Extensions = append(v.Extensions, broker.Attribute{Name: tidemill.AttrAuthID, Value: r.By})
	}
	return v, nil
}

// writerOf returns the component that writes the receipt: the gateway for a drop, the
// scorer or else the dispatcher for a replay.
func writerOf(letter *broker.View, a Action) string {
	scorer, _ := letter.Attribute(tidemill.AttrScorer)
	switch {
	case a != Replayed:
		return "gateway"
	case scorer != "":
		return ofScorer + scorer
	}
	return "dispatcher"
}

// ReadReceipt decodes a receipt.
func ReadReceipt(v *broker.View) (*Receipt, error) {
	if v.Type != tidemill.TypeEventResolved {
		return nil, fmt.Errorf("event %s is of type %s and no receipt", v.ID, v.Type)
	}
	var r Receipt
	if err := json.Unmarshal(v.Data, &r); err != nil {
		return nil, fmt.Errorf("read receipt %s: %w", v.ID, err)
	}
	return &r, nil
}
