package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

// demoHearing is what the demo hears of the answers.
type demoHearing struct {
	mu       sync.Mutex
	promoted time.Time // when the door said that the version is the champion; guarded by mu, the rest is listen's

	seen     map[string]bool // ids of messages
	last     map[string]int  // message by bot, for the order
	version  map[string]string
	answers  int
	early    time.Time     // the first answer by the new version
	first    string        // its id
	over     chan struct{} // closed by it
	byNew    int           // answers
	within   []time.Duration
	swapped  bool // since the last line was written
	problems []string
}

func newDemoHearing() *demoHearing {
	return &demoHearing{seen: map[string]bool{}, last: map[string]int{}, version: map[string]string{}, over: make(chan struct{})}
}

// swap makes version 2 the champion.
func (h *demoHearing) swap(ctx context.Context, door *remote.Gateway, at time.Time) error {
	select {
	case <-time.After(time.Until(at)):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	now := 1
	done, err := door.Promote(ctx, tidemill.ActionPromote, api.PromotionAsked{Model: demoModel, Version: 2, Basis: &now, Reason: "the customer was wrong"})
	h.mu.Lock()
	h.promoted = time.Now()
	h.mu.Unlock()
	if err == nil && done.Champion != 2 {
		err = fmt.Errorf("version %d of %s is the champion after the promotion of 2", done.Champion, demoModel)
	}
	return err
}

// listen reads answers until there is one to each message.
func (h *demoHearing) listen(ctx context.Context, r *broker.Consumer, talk *demoTalking, began time.Time, out io.Writer) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for !h.whole(talk) {
		wait, cancel := context.WithTimeout(ctx, demoGlance)
		d, err := r.Poll(wait)
		nothing := wait.Err() != nil
		cancel()
		switch {
		case err == nil:
			h.take(d)
			d.Done()
		case ctx.Err() != nil:
			return fmt.Errorf("%d messages have been answered: %w", h.answers, context.Cause(ctx))
		case !nothing:
			return err
		}
		select {
		case <-tick.C:
			h.line(time.Since(began), out)
		default:
		}
	}
	h.line(time.Since(began), out)
	return nil
}

// whole tells whether all that was said has been answered.
func (h *demoHearing) whole(talk *demoTalking) bool {
	select {
	case <-talk.sent:
		return h.answers >= talk.count
	default:
		return false
	}
}

func (h *demoHearing) take(d *broker.Delivery) {
	now := time.Now()
	for i := range d.Events {
		v := &d.Events[i].View
		cause, _ := v.Attribute(tidemill.AttrCausationID)
		said, _ := v.Attribute(tidemill.AttrCorrelationID)
		version, _ := v.Attribute(tidemill.AttrModelVersion)
		h.answers++
		h.within = append(h.within, since(now, said))
		h.check(strings.Clone(v.Subject), strings.Clone(cause), strings.Clone(version))
		if v.Subject == "bot-1" && version == "2" {
			if h.byNew++; h.byNew == 1 {
				h.early, h.first, h.swapped = now, strings.Clone(v.ID), true
				close(h.over)
			}
		}
	}
}

func since(now time.Time, said string) time.Duration {
	ns, err := strconv.ParseInt(said, 10, 64)
	if err != nil {
		return 0
	}
	return now.Sub(time.Unix(0, ns))
}

// check holds an answer against what has to be.
func (h *demoHearing) check(bot, cause, version string) {
	n, err := strconv.Atoi(cause)
	before, spoke := h.last[bot]
	switch {
	case err != nil:
		h.fault("an answer to %q, which nobody said", cause)
	case h.seen[cause]:
		h.fault("message %s was answered twice", cause)
	case spoke && n < before:
		h.fault("%s answered message %d behind %d", bot, n, before)
	case h.version[bot] == "2" && version != "2" && bot == "bot-1":
		h.fault("version %s answered message %s behind version 2", version, cause)
	}
	h.seen[cause], h.last[bot], h.version[bot] = true, n, version
}

func (h *demoHearing) fault(format string, args ...any) {
	h.problems = append(h.problems, fmt.Sprintf(format, args...))
}

// line tells of the last second.
func (h *demoHearing) line(at time.Duration, out io.Writer) {
	if len(h.within) == 0 {
		return
	}
	slices.Sort(h.within)
	swap := ""
	if h.swapped {
		swap = "   <- version 2 has taken over"
	}
	fmt.Fprintf(out, "  %4.1f s  %6d answered, p50 %s, p99 %s; %s@%s, intent/bot-2@%s%s\n", at.Seconds(), len(h.within),
		milliseconds(h.within[len(h.within)/2]), milliseconds(h.within[len(h.within)*99/100]), demoModel, h.version["bot-1"], h.version["bot-2"], swap)
	h.within, h.swapped = h.within[:0], false
}

// verdict says what came of it all.
func (h *demoHearing) verdict(said int, out io.Writer) error {
	switch {
	case len(h.problems) > 0:
		return fmt.Errorf("of %d answers %d are wrong: %s", h.answers, len(h.problems), h.problems[0])
	case h.answers != said || len(h.seen) != said:
		return fmt.Errorf("%d messages were said, and %d answered", said, len(h.seen))
	case h.byNew == 0:
		return fmt.Errorf("version 2 of %s has answered nothing", demoModel)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	fmt.Fprintf(out, "  %d of %d messages answered, each once and in order; the first by version 2 came %s after its promotion\n", len(h.seen), said, after(h.promoted, h.early))
	return nil
}

// after is how long after the door's word something came. The scorer follows the
// log and not the door, and is sometimes first.
func after(word, came time.Time) string {
	if d := came.Sub(word); d > 0 {
		return milliseconds(d)
	}
	return "0 ms"
}
