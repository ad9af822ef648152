package deliver

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/cehttp"
)

const (
	// maxReplies is what one event may be answered with. All of them become
	// visible with the event's end, in one transaction.
	maxReplies = 1000
	// maxHops bounds a loop of triggers that answer each other.
	maxHops = 64
)

var errNoReply = errors.New("the answer has a body that is no CloudEvent; a subscriber that answers 200 with a body of its own, as plain webhooks do, needs `delivery: {replies: ignore}` in its trigger")

// readReplies reads the events that a 200 carries, if any. They point into the
// headers and the body.
func readReplies(h http.Header, body []byte) ([]broker.View, error) {
	mode, err := cehttp.ModeOf(h)
	if err != nil {
		return nil, fmt.Errorf("read the reply: %w", err)
	}
	switch {
	case mode == cehttp.Batch:
		return readBatch(h, body)
	case mode == cehttp.Structured:
		return readOne(cehttp.ReadStructured, h, body)
	case hasAttributes(h):
		return readOne(cehttp.ReadBinary, h, body)
	case len(body) > 0:
		return nil, errNoReply
	}
	return nil, nil
}

// hasAttributes tells an answer that wants to be an event in binary mode. One
// that lacks just its ce-specversion is a mistake to be told, and no silence.
func hasAttributes(h http.Header) bool {
	for key := range h {
		if strings.HasPrefix(key, "Ce-") {
			return true
		}
	}
	return false
}

func readOne(read func(http.Header, []byte, *broker.View) error, h http.Header, body []byte) ([]broker.View, error) {
	one := make([]broker.View, 1)
	if err := read(h, body, &one[0]); err != nil {
		return nil, fmt.Errorf("read the reply: %w", err)
	}
	return one, nil
}

// readBatch takes all events or none: who answers with a batch of which one is
// broken gets the whole of it to mend.
func readBatch(h http.Header, body []byte) ([]broker.View, error) {
	var all []broker.View
	var fault error
	err := cehttp.ReadBatch(h, body, maxReplies, func(i int, v *broker.View, err error) {
		if err != nil && fault == nil {
			fault = fmt.Errorf("read reply %d of a batch: %w", i, err)
		}
		all = append(all, *v)
	})
	switch {
	case errors.Is(err, broker.ErrTooMany):
		return nil, fmt.Errorf("read the replies: %w: an event may be answered with %d", err, maxReplies)
	case err != nil:
		return nil, fmt.Errorf("read the replies: %w", err)
	case fault != nil:
		return nil, fault
	}
	return all, nil
}

// descent is what the replies to an event have in common: where they come from.
type descent struct {
	trigger     string
	own         bool // the function is ours, and may speak as Tidemill
	cause       tidemill.Cause
	correlation string
	hops        string
	time        string
}

// descend tells what follows from an event. It refuses the reply to an event
// that so many replies have led to that they must be running in a circle.
func descend(v *broker.View, trigger string, own bool, now time.Time) (descent, error) {
	hops := hopsOf(v)
	if hops >= maxHops {
		return descent{}, fmt.Errorf("refuse the reply: %d replies in a row have led to this event, so triggers answer each other in a circle: let one of them match less, or set its `delivery: {replies: ignore}`", hops)
	}
	correlation, _ := v.Attribute(tidemill.AttrCorrelationID)
	if correlation == "" {
		correlation = v.ID
	}
	return descent{trigger: trigger, own: own, cause: tidemill.Cause{Source: v.Source, ID: v.ID}, correlation: correlation,
		hops: strconv.Itoa(hops + 1), time: now.UTC().Format(time.RFC3339Nano)}, nil
}

// hopsOf reads what may be an outside publisher's, who may have written
// anything there.
func hopsOf(v *broker.View) int {
	text, _ := v.Attribute(tidemill.AttrHops)
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// stamp makes a reply ready to be published. Its id becomes one that derives
// from the event, the trigger and the reply's index, and the function's own is
// lost: most functions take a random one, and an event that is delivered twice
// must have the same replies both times. Key, subject and source stay the
// function's. Who did it does not: a function answers for nobody but itself,
// also where it only copied that from the event.
func (d *descent) stamp(index int, reply *broker.View) error {
	if err := tidemill.Reserved(reply.Type, reply.Source); err != nil && !d.own {
		return fmt.Errorf("refuse the reply: %w", err)
	}
	reply.ID = d.cause.Derive("reply", d.trigger, strconv.Itoa(index))
	reply.Key, reply.Foreign = nil, nil
	if !d.own {
		unsign(reply)
	}
	if reply.Time == "" {
		reply.Time = d.time
	}
	for _, a := range [...]broker.Attribute{
		{Name: tidemill.AttrCausationID, Value: d.cause.ID},
		{Name: tidemill.AttrCausationSource, Value: d.cause.Source},
		{Name: tidemill.AttrCorrelationID, Value: d.correlation},
		{Name: tidemill.AttrTrigger, Value: d.trigger},
		{Name: tidemill.AttrHops, Value: d.hops},
	} {
		if err := reply.Set(a.Name, a.Value); err != nil {
			return err
		}
	}
	return reply.Validate() // with what was added it may have too many
}

// unsign takes off who did it.
func unsign(v *broker.View) {
	v.Extensions = slices.DeleteFunc(v.Extensions, func(a broker.Attribute) bool { return a.Name == tidemill.AttrAuthID })
}
