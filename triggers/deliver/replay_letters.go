package deliver

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/triggers/commands"
)

// Replayed dead letters are handled as if their events had been parked. A command names dead
// letters; each partition takes those of its own events, in the command's order. It takes some in
// each transaction, together with begun, which stores the partition's progress with each command.
// So each dead letter is taken once, whichever dispatcher owns the partition and whenever it dies.

// commandProgress is a partition's progress with commands to replay dead letters.
type commandProgress struct {
	next    int64         // offset up to which commands are known
	open    map[int64]int // number of dead letters taken of each unfinished command, by its offset
	unsaved int           // number of commands with dead letters for us that no stored state mentions yet
}

// replayedLetter is a dead letter's event.
type replayedLetter struct {
	trigger string
	replay  string // see replayName
	letter  string // see letterRef
	source  int64
	view    broker.View // own copy
}

// replayBatch has the dead letters of a command that one transaction takes.
type replayBatch struct {
	act  int64
	upTo int  // number of the command's dead letters that will then be done
	last bool // true if no further dead letter follows
	all  []replayedLetter
}

// replayName names a replay among a partition's items. One command may replay several dead letters
// of one event if each came from an earlier replay; that replay distinguishes them.
func replayName(act, former string) string {
	if former == "" {
		return act
	}
	return act + "/" + former
}

// actOf returns the command of a replay.
func actOf(name string) string {
	act, _, _ := strings.Cut(name, "/")
	return act
}

// readsCommands reports whether the partition may take dead letters now.
func (p *partition) readsCommands(now millis) bool {
	return p.opened && !p.closed && !p.leaving && p.begunAt != none && p.replayed == nil && p.writing == nil && !p.skewing(now)
}

// commandsRead records that commands up to an offset are known; the given ones have dead
// letters here.
func (p *partition) commandsRead(next int64, acts ...int64) {
	if p.closed {
		return
	}
	for _, act := range acts {
		if _, known := p.progress.open[act]; !known && act >= p.progress.next {
			p.progress.open[act] = 0
			p.progress.unsaved++
		}
	}
	p.progress.next = max(p.progress.next, next)
}

// replay makes the next transaction take dead letters of a command, in its order. If all
// of them are resolved already, it only records the progress.
func (p *partition) replay(in *replayBatch, now millis) bool {
	if done, open := p.progress.open[in.act]; !p.readsCommands(now) || !open || done > in.upTo {
		return false
	}
	if len(in.all) == 0 {
		p.progress.advance(in)
		return true
	}
	p.replayed = in
	return true
}

func (cp *commandProgress) advance(in *replayBatch) {
	cp.open[in.act] = in.upTo
	if in.last {
		delete(cp.open, in.act)
	}
}

// written returns the progress after a transaction is committed.
func (cp *commandProgress) written(in *replayBatch) (acts int64, letters map[int64]int) {
	after := commandProgress{open: maps.Clone(cp.open)}
	if in != nil {
		after.advance(in)
	}
	return cp.next, after.open
}

// planReplay parks the events of the dead letters. These dead letters join their queues after the
// commit.
func (p *partition) planReplay(w *partitionWrite, now millis, room *allowance) {
	if p.replayed == nil || p.skewing(now) || room.spent() {
		return
	}
	w.replayed = p.replayed
	for n := range w.replayed.all {
		one := &w.replayed.all[n]
		l := p.triggerState(one.trigger)
		i := &item{part: p, queue: &keyQueue{trigger: l, at: lonely}, event: &sourceEvent{view: one.view}, letter: one.letter, first: now,
			ref: recordRef{source: one.source, at: none, first: uint32(now / 1000), replay: p.replays.number(one.replay)}}
		p.planPark(w, i, now, room)
	}
	w.replays = len(w.replayed.all)
}

// settleReplay adds the events that were taken to their queues.
func (p *partition) settleReplay(w *partitionWrite, parks []recordWrite, now millis) {
	p.replayed = nil
	p.progress.advance(w.replayed)
	for n := range parks {
		i := parks[n].item
		i.ref.at = parks[n].at
		p.needed.Add(i.ref.at)
		l, key := i.queue.trigger, i.event.view.Key
		if l.spills() {
			l.tally(i.ref, 1)
			l.spill(i.ref)
			continue
		}
		keyed := key != nil && (l.trigger == nil || l.trigger.Delivery.Ordered)
		c := l.queueOf(p.hash(key), keyed)
		c.insertReplay(i.ref, now)
	}
}

// insertReplay adds a record that is due now. It does not overtake an item on its way.
func (c *keyQueue) insertReplay(r recordRef, now millis) {
	c.add(r)
	switch {
	case c.at == lonely:
		c.waitUntil(now, now)
	case c.at >= 0 && c.refs[0].same(r) && c.due > now:
		c.due = now
		c.trigger.heap.up(int(c.at))
		c.trigger.part.stirred = true
	}
}

// pace computes when a command's dead letters are due, so that all partitions together
// keep its rate without talking to each other: the index of a dead letter in the whole
// command gives its time.
type pace struct {
	act  *commands.LetterReplay
	late time.Duration // delay of all later dead letters; negative if the clock of the command's author is ahead
}

// lateness is the delay from which on the later dead letters are delayed, too. So a
// partition that was stuck for an hour does not catch up all at once.
const lateness = time.Second

// longestPace keeps times within the range of a duration, however small a rate is.
const longestPace = 100 * 365 * 24 * time.Hour

// dueTime returns when the dead letter of an index may be taken.
func (p *pace) dueTime(index int) time.Time {
	if p.act.Rate <= 0 {
		return p.act.At.Add(p.late)
	}
	seconds := min(float64(p.act.First+index)/p.act.Rate, longestPace.Seconds())
	return p.act.At.Add(p.late + time.Duration(seconds*float64(time.Second)))
}

// goOn starts the dead letter of an index now, if it is due.
func (p *pace) goOn(index int, now time.Time) {
	if behind := now.Sub(p.dueTime(index)); p.act.Rate > 0 && behind > lateness {
		p.late += behind
	}
}

// findAsked finds streams without triggers whose dead letters are to be replayed. A stream that Kafka could not
// be asked about is left to findLeft. Called with the lock held.
func (d *Dispatcher) findAsked(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, searchWithin)
	defer cancel()
	acts := d.commands.Now()
	for _, act := range acts.LetterReplays(d.firstUnread) {
		for _, stream := range act.Streams {
			if _, known := d.config.Stream(stream); d.plans[stream] != nil || !known {
				continue
			}
			switch _, err := d.o.Broker.Ends(ctx, tidemill.Parked(stream)); {
			case err == nil:
				d.plans[stream] = deserted()
			case !errors.Is(err, broker.ErrNoStream): // without a parked stream no trigger has ever read the stream
				d.o.Logger.Warn("dispatcher: finding dead letters to replay failed; retrying", "stream", stream, "reason", err)
				d.unsearched[stream] = true
			}
		}
	}
	d.firstUnread = acts.Next()
}
