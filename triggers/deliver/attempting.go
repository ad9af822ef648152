package deliver

import (
	"errors"
	"fmt"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/triggers/letters"
)

// attempt makes one attempt for an item, and sees to what follows from it.
func (d *Dispatcher) attempt(s *sender, i *item) {
	h := i.part.home
	started := false
	h.do(func(p *partition, now moment) { started = p.start(i, now) })
	if !started {
		return
	}
	if d.passed(i) {
		d.pass(i)
		return
	}
	to := s.to.Load()
	if why := doomed(i, to, h); why != "" {
		d.bury(s, i, nil, why)
		return
	}
	o := to.subscriber.post(h.ctx, &i.event.view, i.tries+1)
	if h.ctx.Err() != nil && o.kind != delivered {
		return // its partition is another's, who tries it anew
	}
	if o.kind == notYet {
		d.missed(s.name, errors.New(o.attempt.Error))
		h.do(func(p *partition, now moment) { p.postponed(i, expectEvery, now) })
		return
	}
	if o.kind == delivered && len(o.replies) > 0 {
		if err := d.replies.publish(h.ctx, o.replies); err != nil {
			if h.ctx.Err() != nil {
				return
			}
			o.fail(refused, "its reply cannot be published: "+err.Error())
		}
	}
	s.attempted(&o)
	switch {
	case o.kind == delivered:
		d.over(s, i)
	case o.kind == refused:
		d.bury(s, i, &o.attempt, fmt.Sprintf("trigger %s: its subscriber refused the event: %s", s.name, o.attempt.Error))
	case i.tries+1 >= to.trigger.Delivery.Attempts:
		d.bury(s, i, &o.attempt, fmt.Sprintf("trigger %s: its subscriber did not take the event in %d attempts: %s", s.name, i.tries+1, o.attempt.Error))
	default:
		wait := delay(to.trigger.Delivery.Backoff, i.tries+1, random(), o.after)
		h.do(func(p *partition, now moment) { p.failed(i, o.attempt, wait, now) })
	}
}

// doomed says why an item need not be attempted at all; empty if it shall.
func doomed(i *item, to *target, h *shard) string {
	switch {
	case i.lost != "":
		return i.lost
	case i.event.unfit != "":
		return fmt.Sprintf("trigger %s: %s", i.chain.line.name, i.event.unfit)
	case to.subscriber == nil:
		return fmt.Sprintf("trigger %s is no longer in the config: put it back and replay the event, or drop it", i.chain.line.name)
	case i.expired:
		return fmt.Sprintf("trigger %s: the event has waited longer than half of its stream's retention", i.chain.line.name)
	}
	return ""
}

func (d *Dispatcher) over(s *sender, i *item) {
	s.delivered(time.Since(i.event.logged.time()))
	if err := d.resolve(i, letters.Receipt{Outcome: letters.Delivered}); err != nil {
		return // its partition is another's, who delivers it anew
	}
	i.part.home.do(func(p *partition, now moment) { p.ended(i, now) })
}

// bury ends an item with a dead letter.
func (d *Dispatcher) bury(s *sender, i *item, last *Attempt, reason string) {
	h := i.part.home
	letter, err := d.letters.write(h, i, last, reason)
	if err == nil {
		err = d.resolve(i, letters.Receipt{Outcome: letters.FailedAgain, Reason: reason, NewLetter: letter})
	}
	if err != nil {
		return // its partition is another's, who writes it anew
	}
	s.deadLettered(reason)
	h.do(func(p *partition, now moment) { p.ended(i, now) })
}

// send hands an item to its sender, or to the undertaker if it has none.
func (d *Dispatcher) send(i *item) {
	if !d.senderOf(i.chain.line.name).offer(i) {
		d.undertaker.offer(i)
	}
}

// place names the item's event for its letter.
func place(i *item) broker.Position {
	return broker.Position{Stream: i.part.stream, Partition: i.part.number, Offset: i.rec.source}
}

func details(i *item, last *Attempt, group, reason string) letters.Details {
	d := letters.Details{Trigger: i.chain.line.name, Group: group, Reason: reason, Tried: i.tries, Replay: actOf(i.replay), Letter: i.letter}
	d.Attempts = i.past
	if last != nil {
		d.Tried++
		d.Attempts = append(append([]Attempt{}, i.past...), *last)
	}
	return d
}
