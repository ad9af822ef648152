package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
	"tidemill.dev/triggers/keys"
)

// Attempt is one try to deliver an event, as its dead letter lists it. It holds no
// credential: any that a subscriber repeats is removed.
type Attempt = deadletters.Attempt

// attemptResult is the outcome of an attempt.
type attemptResult struct {
	kind    verdict
	replies []broker.View // events to be published, in their own memory
	ignored bool          // whether events in the answer were ignored by default
	after   time.Duration // wait that the subscriber asks for
	attempt Attempt
}

// fail ends an attempt that did not deliver the event. Its replies are not published.
func (o *attemptResult) fail(kind verdict, reason string) {
	o.kind, o.replies, o.attempt.Error = kind, nil, reason
}

// attempt makes one attempt for an item and handles its outcome.
func (d *Dispatcher) attempt(s *sender, i *item) {
	h := i.part.home
	started, judged := false, false
	defer func() {
		if i.probe && !judged {
			s.skipProbe(0)
		}
	}()
	h.apply(func(p *partition, now millis) { started = p.start(i, now) })
	if !started {
		return
	}
	switch passed, err := d.passed(i); {
	case h.ctx.Err() != nil:
		return // the new owner of its partition tries again
	case err != nil:
		d.o.Logger.Warn("dispatcher: reading whether a key is forgotten failed; its event waits", "trigger", s.name, "key", i.event.view.Subject, "reason", err)
		h.apply(func(p *partition, now millis) { p.postponed(i, lookAgain, now) })
		return
	case passed:
		d.endForgotten(i)
		return
	}
	to := s.to.Load()
	if why := doomed(i, to, h); why != "" {
		d.bury(s, i, nil, why)
		return
	}
	o := to.subscriber.post(h.ctx, &i.event.view, i.tries+1)
	if h.ctx.Err() != nil && o.kind != delivered {
		return // the new owner of its partition tries again
	}
	if o.kind == notYet {
		d.targetMissing(s.name, errors.New(o.attempt.Error))
		h.apply(func(p *partition, now millis) { p.postponed(i, expectEvery, now) })
		return
	}
	judged = true
	d.judge(s, i, &o)
	if o.kind == delivered && len(o.replies) > 0 {
		if err := d.replies.publish(h.ctx, o.replies); err != nil {
			if h.ctx.Err() != nil {
				return
			}
			o.fail(refused, "its reply cannot be published: "+err.Error())
		}
	}
	s.attempted(&o)
	if o.ignored {
		d.noteIgnored(s)
	}
	switch {
	case o.kind == delivered:
		d.over(s, i)
	case o.kind == refused:
		d.bury(s, i, &o.attempt, "the subscriber refused the event: "+o.attempt.Error)
	case i.tries+1 >= to.trigger.Delivery.Attempts:
		d.bury(s, i, &o.attempt, fmt.Sprintf("the subscriber did not take the event in %d attempts: %s", i.tries+1, o.attempt.Error))
	default:
		wait := delay(to.trigger.Delivery.Backoff, i.tries+1, random(), o.after)
		h.apply(func(p *partition, now millis) { p.failed(i, o.attempt, wait, now) })
	}
}

// ignoredQuiet is the time for which answers with ignored events are only counted.
const ignoredQuiet = 10 * time.Minute

// noteIgnored counts an answer with events that was ignored because the file does not say what to do
// with replies. Such a config may be older than this default, so the log says so, but not for each.
func (d *Dispatcher) noteIgnored(s *sender) {
	times := s.ignoredN.Add(1)
	now, quiet := time.Now().UnixNano(), s.ignoredQuiet.Load()
	if now < quiet || !s.ignoredQuiet.CompareAndSwap(quiet, now+int64(ignoredQuiet)) {
		return
	}
	d.o.Logger.Warn("dispatcher: a subscriber answers with events; they are ignored", "trigger", s.name, "times", times,
		"next", "name their types in the trigger's delivery, such as {replies: {types: [invoice-sent]}}, or write {replies: ignore}")
}

// lookAgain is the wait after a command could not be read.
const lookAgain = 5 * time.Second

// doomed returns the reason why an item must not be attempted; empty if there is none.
func doomed(i *item, to *target, h *assignment) string {
	switch {
	case i.lost != "":
		return i.lost
	case i.event.unfit != "":
		return i.event.unfit
	case to.subscriber == nil:
		return fmt.Sprintf("trigger %s is no longer in the config: add it again and replay the event, or drop it", i.queue.trigger.name)
	case i.expired:
		return "the event has waited longer than half of its stream's retention"
	}
	return ""
}

func (d *Dispatcher) over(s *sender, i *item) {
	s.delivered(time.Since(i.event.logged.time()))
	if err := d.resolve(i, deadletters.Receipt{Outcome: deadletters.Delivered}); err != nil {
		return // the new owner of its partition delivers it
	}
	i.part.home.apply(func(p *partition, now millis) { p.reportEnd(i, now) })
}

// bury ends an item with a dead letter.
func (d *Dispatcher) bury(s *sender, i *item, last *Attempt, reason string) {
	h := i.part.home
	letter, err := d.deadLetters.write(h, i, last, reason)
	if err == nil {
		err = d.resolve(i, deadletters.Receipt{Outcome: deadletters.FailedAgain, Reason: reason, NewLetter: letter})
	}
	if err != nil {
		return // the new owner of its partition writes the dead letter
	}
	s.deadLettered(reason)
	h.apply(func(p *partition, now millis) { p.reportEnd(i, now) })
}

// send hands an item to its sender, or to the sender of orphans if its trigger is gone.
func (d *Dispatcher) send(i *item) {
	if !d.senderOf(i.queue.trigger.name).offer(i) {
		d.orphans.offer(i)
	}
}

// place returns the place of the item's event for its dead letter.
func place(i *item) broker.Position {
	return broker.Position{Stream: i.part.stream, Partition: i.part.number, Offset: i.ref.source}
}

func details(i *item, last *Attempt, group, reason string) deadletters.Details {
	d := deadletters.Details{Trigger: i.queue.trigger.name, Group: group, Reason: reason, Tried: i.tries, Replay: actOf(i.replay), Letter: i.letter}
	d.Attempts = i.past
	if last != nil {
		d.Tried++
		d.Attempts = append(append([]Attempt{}, i.past...), *last)
	}
	return d
}

// verdict is what happens to an event after an attempt.
type verdict int

const (
	delivered verdict = iota
	again             // try again later
	refused           // would fail the same way every time
	notYet            // there was no subscriber to call
)

// String returns the verdict's name.
func (v verdict) String() string {
	switch v {
	case delivered:
		return "delivered"
	case again:
		return "again"
	case notYet:
		return "not yet"
	}
	return "refused"
}

// judge implements Knative's data-plane contract; 408 is retried as well. A status that
// the contract does not list is retried, as it says.
func judge(status int) verdict {
	switch status {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return again // a 404 may come from a function that is starting or from a route that is not yet known everywhere
	}
	switch status / 100 {
	case 2:
		return delivered
	case 1, 3, 4:
		return refused
	}
	return again
}

// longestAfter bounds a Retry-After. A subscriber that asks for a longer wait is called
// once in that time, so an error in its clock or units does not delay events for days.
const longestAfter = time.Hour

// retryAfter parses a Retry-After: seconds or a date. An invalid value or a past date
// means no wait.
func retryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if isDigits(value) {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(longestAfter/time.Second) { // digits fail to parse only if there are too many
			return longestAfter
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), longestAfter)
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// replier publishes the events that subscribers reply with, each to the stream of its type.
type replier struct {
	p      *broker.Producer
	config atomic.Pointer[config.Config]
	takers atomic.Pointer[keys.Takers]
}

// publish returns when all events are acknowledged. It retries temporary failures as long as the
// context allows. A repeated event has the same id, because the id derives from its cause.
func (r *replier) publish(ctx context.Context, replies []broker.View) error {
	c, begun := r.config.Load(), time.Now()
	for n := range replies {
		for {
			_, err := r.p.Publish(ctx, c.StreamFor(replies[n].Type), &replies[n])
			if err == nil {
				break
			}
			isNew := errors.Is(err, broker.ErrNoStream) && time.Since(begun) < streamIsNewFor
			if hopeless(err) && !isNew || retry.Sleep(ctx, publishAgain) != nil {
				return err
			}
		}
	}
	return nil
}

// streamIsNewFor is how long a reply waits for its stream, which may be created or created again just now.
const streamIsNewFor = time.Minute

// hopeless reports whether no stream will ever accept an event.
func hopeless(err error) bool {
	var attribute *broker.AttributeError
	return errors.Is(err, broker.ErrTooLarge) || errors.Is(err, broker.ErrNoStream) || errors.As(err, &attribute)
}

// deadLetterWriter writes dead letters. It retries until the dead letters are written, because an
// event must not be dropped without its dead letter.
type deadLetterWriter struct {
	p     *broker.Producer
	names tidemill.Names
	log   *slog.Logger
}

// write writes an item's dead letter and returns its id. An error means that the item's
// partition has been given up meanwhile.
func (w *deadLetterWriter) write(h *assignment, i *item, last *Attempt, reason string) (string, error) {
	if i.lost != "" {
		return w.withoutEvent(h, i, reason)
	}
	destination := ""
	if to := h.pipeline.d.senderOf(i.queue.trigger.name).to.Load(); to.subscriber != nil {
		destination = to.subscriber.destination()
	}
	d := details(i, last, h.pipeline.group, reason)
	d.Destination = destination
	v, err := deadletters.New(w.names, place(i), &i.event.view, d, time.Now())
	if err != nil {
		return w.withoutEvent(h, i, reason+"; "+err.Error())
	}
	w.log.Warn("dispatcher: delivery failed; the event becomes a dead letter", "trigger", d.Trigger, "stream", i.part.stream, "partition", i.part.number, "offset", i.ref.source, "event", i.event.view.ID, "reason", reason)
	if err = w.publish(h.ctx, &v); errors.Is(err, broker.ErrTooLarge) {
		return w.withoutEvent(h, i, reason+"; "+err.Error())
	}
	return v.ID, err
}

// withoutEvent returns the dead letter of an item whose event does not fit into one.
func (w *deadLetterWriter) withoutEvent(h *assignment, i *item, reason string) (string, error) {
	at := place(i)
	return w.gap(h.ctx, at, at.Offset, h.pipeline.group, fmt.Sprintf("trigger %s: %s", i.queue.trigger.name, reason), i.queue.trigger.name)
}

// gap writes a dead letter for offsets that can no longer be read, for one trigger if it is given.
func (w *deadLetterWriter) gap(ctx context.Context, from broker.Position, last int64, group, reason string, of ...string) (string, error) {
	data, err := json.Marshal(broker.DeadLetter{Stream: from.Stream, Partition: from.Partition, Offset: from.Offset, Last: last, Group: group, Reason: reason})
	if err != nil {
		return "", fmt.Errorf("write the dead letter of %s/%d at offset %d: %w", from.Stream, from.Partition, from.Offset, err)
	}
	w.log.Warn("dispatcher: an event is unreadable or too large; its dead letter lacks the event", "stream", from.Stream, "partition", from.Partition, "offset", from.Offset, "reason", reason)
	v := broker.View{
		ID:     tidemill.ID(append([]string{"dead-letter", group, from.Stream, strconv.Itoa(int(from.Partition)), strconv.FormatInt(from.Offset, 10)}, of...)...),
		Source: w.names.Source("dispatcher"), Type: tidemill.TypeEventDeadLettered, Time: time.Now().UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json", DataSchema: tidemill.Schema(tidemill.TypeEventDeadLettered), Data: data}
	return v.ID, w.publish(ctx, &v)
}

// publish retries until the dead letter is written or the context ends. A repeated one
// has the same id, because the id derives from its cause.
func (w *deadLetterWriter) publish(ctx context.Context, v *broker.View) error {
	return w.retry(ctx, v.ID, func() error {
		_, err := w.p.Publish(ctx, tidemill.StreamDeadLetters, v)
		return err
	})
}

const publishAgain = time.Second

var errNoLetter = errors.New("the dead letter was not written")

// letterRef is the place of a dead letter, as a parked event stores it.
type letterRef struct {
	partition int32
	offset    int64
	id        string
}

func refOf(l *askedLetter) letterRef { return letterRef{l.Partition, l.Offset, l.ID} }

// String returns the text for a record.
func (r letterRef) String() string {
	return strconv.Itoa(int(r.partition)) + "/" + strconv.FormatInt(r.offset, 10) + "/" + r.id
}

func parseLetterRef(text string) (letterRef, error) {
	parts := strings.SplitN(text, "/", 3)
	if len(parts) < 3 {
		return letterRef{}, fmt.Errorf("%q is not the id of a dead letter", text)
	}
	partition, err := strconv.ParseInt(parts[0], 10, 32)
	if err != nil {
		return letterRef{}, fmt.Errorf("%q is not the id of a dead letter: %w", text, err)
	}
	offset, err := strconv.ParseInt(parts[1], 10, 64)
	return letterRef{int32(partition), offset, parts[2]}, err
}

// resolve ends the dead letter that an item replays; for any other item it does
// nothing. An error means that the item's partition has been given up.
func (d *Dispatcher) resolve(i *item, r deadletters.Receipt) error {
	if i.letter == "" {
		return nil
	}
	ref, err := parseLetterRef(i.letter)
	if err != nil { // cannot happen, because a dispatcher wrote the reference
		d.o.Logger.Error("dispatcher: the reference to a replayed dead letter is invalid; it gets no receipt", "trigger", i.queue.trigger.name, "event", i.event.view.ID, "reason", err)
		return nil
	}
	r.Command = actOf(i.replay)
	r.By = askedBy(d.commands.Now(), r.Command)
	letter := deadletters.Of(d.names, ref.id, i.queue.trigger.name, &i.event.view)
	return d.deadLetters.resolve(i.part.home.ctx, ref, &letter, r)
}

// askedBy returns the author of a command.
func askedBy(all *commands.State, act string) string {
	for _, r := range all.LetterReplays(0) {
		if r.ID == act {
			return r.By
		}
	}
	return ""
}

// resolve writes the receipt of a replayed dead letter. Its id derives from the dead
// letter and the command, so a repeated receipt has the same id.
func (w *deadLetterWriter) resolve(ctx context.Context, at letterRef, letter *broker.View, r deadletters.Receipt) error {
	r.Partition, r.Offset, r.Action = at.partition, at.offset, deadletters.Replayed
	v, err := deadletters.Resolved(w.names, letter, r, time.Now())
	if err != nil {
		return err
	}
	return w.retry(ctx, v.ID, func() error {
		done := make(chan error, 1)
		w.p.SendTo(ctx, tidemill.StreamDeadLetters, at.partition, &v, func(_ broker.Receipt, err error) { done <- err })
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// retry calls write until it succeeds, the context ends, or the error is permanent.
func (w *deadLetterWriter) retry(ctx context.Context, id string, write func() error) error {
	backoff := retry.Backoff{First: publishAgain, Cap: 30 * publishAgain}
	for {
		err := write()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || errors.Is(err, broker.ErrTooLarge) {
			return errors.Join(errNoLetter, err)
		}
		w.log.Warn("dispatcher: writing a dead letter failed; retrying", "event", id, "reason", err)
		if backoff.Sleep(ctx) != nil {
			return errNoLetter
		}
	}
}
