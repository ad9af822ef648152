package deliver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
	"tidemill.dev/config"
	"tidemill.dev/triggers/keys"
)

const (
	// maxReplies bounds the replies to one event. All of them become visible with the
	// event's end, in one transaction.
	maxReplies = 1000
	// maxHops bounds a loop of triggers that reply to each other.
	maxHops = 64
)

var errNoReply = errors.New("the answer has a body that is not a CloudEvent; a subscriber that answers 200 with another body, as plain webhooks do, needs `delivery: {replies: ignore}` in its trigger")

// readReplies reads the events of a 200, if any. The replies point into the headers and the body.
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

// hasAttributes reports whether an answer is meant as an event in binary mode. An
// answer that only lacks ce-specversion is reported as an error and not ignored.
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

// readBatch accepts all events or none, so that a batch with one broken event can be
// corrected as a whole.
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

// causation has the values that all replies to an event share.
type causation struct {
	trigger     string
	own         bool // whether the function is Tidemill's own, and may publish any type for any key
	replies     config.Replies
	takers      *keys.Takers
	subject     string // subject of the event
	partition   string // partitionkey of the event
	cause       tidemill.Cause
	correlation string
	hops        string
	time        string
}

// causationOf returns the causation of replies to an event. It refuses if so many replies
// have led to the event that there must be a loop.
func causationOf(v *broker.View, t *config.Trigger, takers *keys.Takers, now time.Time) (causation, error) {
	hops := hopsOf(v)
	if hops >= maxHops {
		return causation{}, fmt.Errorf("refuse the reply: %d replies in a row have led to this event, so triggers answer each other in a circle: let one of them match less, or set its `delivery: {replies: ignore}`", hops)
	}
	correlation, _ := v.Attribute(tidemill.AttrCorrelationID)
	if correlation == "" {
		correlation = v.ID
	}
	partition, _ := v.Attribute(tidemill.AttrPartitionKey)
	return causation{trigger: t.Name, own: t.To.Function != "", replies: t.Delivery.Replies, takers: takers, subject: v.Subject, partition: partition,
		cause: tidemill.Cause{Source: v.Source, ID: v.ID}, correlation: correlation, hops: strconv.Itoa(hops + 1), time: now.UTC().Format(time.RFC3339Nano)}, nil
}

// hopsOf reads an attribute that an outside publisher may have written.
func hopsOf(v *broker.View) int {
	text, _ := v.Attribute(tidemill.AttrHops)
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// stamp prepares a reply for publishing. Its id derives from the event, the trigger and
// the reply's index, and replaces the function's id: most functions use a random one, but
// an event that is delivered twice must have the same replies both times. The source stays the
// function's, and so do key and subject if it gave them. The author is removed, because a function
// acts only for itself, even if it copied the author from the event.
func (c *causation) stamp(index int, reply *broker.View) error {
	if err := tidemill.Reserved(reply.Type, reply.Source); err != nil && !c.own {
		return fmt.Errorf("refuse the reply: %w", err)
	}
	reply.ID = c.cause.Derive("reply", c.trigger, strconv.Itoa(index))
	reply.Key, reply.Foreign = nil, nil
	if !c.own {
		withoutSignature(reply)
	}
	if reply.Time == "" {
		reply.Time = c.time
	}
	for _, a := range [...]broker.Attribute{
		{Name: tidemill.AttrCausationID, Value: c.cause.ID},
		{Name: tidemill.AttrCausationSource, Value: c.cause.Source},
		{Name: tidemill.AttrCorrelationID, Value: c.correlation},
		{Name: tidemill.AttrTrigger, Value: c.trigger},
		{Name: tidemill.AttrHops, Value: c.hops},
	} {
		if err := reply.Set(a.Name, a.Value); err != nil {
			return err
		}
	}
	if err := c.limit(reply); err != nil {
		return err
	}
	return reply.Validate() // the added attributes may be too many
}

// limit returns an error if the trigger does not accept a reply. Any program may answer at a
// subscriber's address, so a reply has only the types and the keys that the config expects.
func (c *causation) limit(reply *broker.View) error {
	named := slices.Contains(c.replies.Types, reply.Type)
	switch {
	case c.own:
		return nil
	case len(c.replies.Types) > 0 && !named:
		return fmt.Errorf("refuse the reply: its type is %q, and the trigger accepts only %s; add the type to `delivery: {replies: {types: […]}}`", reply.Type, strings.Join(c.replies.Types, ", "))
	case !named && c.takers.Ends("", reply):
		return fmt.Errorf("refuse the reply: its type %q ends its key and deletes its models and data; if the subscriber may do that, name the type in `delivery: {replies: {types: […]}}`", reply.Type)
	case c.replies.AnyKey:
		return nil
	}
	return c.limitKeys(reply)
}

// limitKeys returns an error if a reply is about another key than its event. A reply without a key
// gets the key of the event.
func (c *causation) limitKeys(reply *broker.View) error {
	partition, _ := reply.Attribute(tidemill.AttrPartitionKey)
	if partition == "" && reply.Subject == "" {
		reply.Subject = c.subject
		if c.partition != "" {
			if err := reply.Set(tidemill.AttrPartitionKey, c.partition); err != nil {
				return err
			}
		}
	}
	all := append(c.takers.Taken("", reply), keys.Taken{Place: tidemill.AttrPartitionKey, Key: partition}, keys.Taken{Place: config.KeySubject, Key: reply.Subject})
	for _, one := range all {
		if one.Key == "" || one.Key == c.subject || one.Key == c.partition {
			continue
		}
		place := one.Place
		if one.By != "" {
			place += " (the key of " + one.By + ")"
		}
		return fmt.Errorf("refuse the reply: its %s is %q, which is not a key of the event; if the subscriber may answer for other keys, write `delivery: {replies: {keys: any}}`", place, shorten(one.Key))
	}
	return nil
}

// isEvent reports whether an answer has the form of events. Its body is not read.
func isEvent(h http.Header) bool {
	mode, err := cehttp.ModeOf(h)
	return err == nil && (mode != cehttp.Binary || hasAttributes(h))
}

// withoutSignature removes the author's attributes.
func withoutSignature(v *broker.View) {
	v.Extensions = slices.DeleteFunc(v.Extensions, func(a broker.Attribute) bool { return a.Name == tidemill.AttrAuthID })
}

const (
	maxReply  = 1 << 20 // bytes of an answer with replies, and of its headers
	maxAnswer = 1 << 10 // bytes that are kept of any other answer
	// maxDrained is how much of the rest is read to keep the connection. For more than
	// that a new connection is cheaper.
	maxDrained = 64 << 10
)

// subscriberAnswer is the relevant part of a subscriber's answer.
type subscriberAnswer struct {
	status int
	header http.Header
	body   []byte
	broken error // error while the body was read
	long   bool  // whether the body is longer than the part that was read
}

// readAnswer reads at most most bytes of the body and closes it.
func readAnswer(res *http.Response, most int) subscriberAnswer {
	defer res.Body.Close()
	a := subscriberAnswer{status: res.StatusCode, header: res.Header}
	if res.ContentLength == 0 {
		return a
	}
	a.body, a.broken = readUpTo(res.Body, most+1, res.ContentLength)
	if a.long = len(a.body) > most; a.long {
		a.body = a.body[:most]
	}
	if a.broken == nil && a.long {
		_, a.broken = io.CopyN(io.Discard, res.Body, maxDrained)
		if errors.Is(a.broken, io.EOF) {
			a.broken = nil
		}
	}
	return a
}

// readUpTo trusts a Content-Length only for a small first buffer: a hostile one must not
// take memory for bytes that never come.
func readUpTo(r io.Reader, most int, length int64) ([]byte, error) {
	const believed = 8 << 10
	room := 512
	if length > 0 {
		room = int(min(length+1, believed)) // one more byte, to detect the end without growing
	}
	b := make([]byte, 0, min(room, most))
	for len(b) < most {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := r.Read(b[len(b):min(cap(b), most)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
	return b, nil
}

// shown returns the beginning of the answer as text for a dead letter.
func (a *subscriberAnswer) shown(hidden secrets) string {
	body := a.body[:min(len(a.body), maxAnswer)]
	text := hidden.redact(strings.ToValidUTF8(string(body), "\uFFFD"))
	if a.long || a.broken != nil || len(body) < len(a.body) {
		text = hidden.trim(text)
	}
	if len(text) > maxAnswer {
		text = strings.ToValidUTF8(text[:maxAnswer], "") // drops half a character at the end
	}
	return text
}

// errorOf returns the reason why an answer with this status is not a delivery.
func errorOf(a *subscriberAnswer) string {
	said := fmt.Sprintf("answered %d %s", a.status, http.StatusText(a.status))
	said = strings.TrimSpace(said)
	if a.status/100 != 3 {
		return said
	}
	said += ": redirects are not followed, for the event would go to whom the config does not name"
	if to := location(a.header); to != "" {
		return said + ": give " + to + " as the trigger's url, if that is where it shall go"
	}
	return said + ": give the final address as the trigger's url"
}

// location returns where a redirect leads, without parts that may be secret.
func location(h http.Header) string {
	const longest = 200
	to, err := url.Parse(h.Get("Location"))
	if err != nil || to.String() == "" {
		return ""
	}
	to = &url.URL{Scheme: to.Scheme, Host: to.Host, Path: to.Path}
	if text := to.String(); len(text) <= longest {
		return text
	}
	return ""
}

// shorten bounds text of others in a dead letter.
func shorten(s string) string {
	if len(s) <= maxAnswer {
		return s
	}
	return strings.ToValidUTF8(s[:maxAnswer], "") + "…"
}
