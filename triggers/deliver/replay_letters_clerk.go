package deliver

import (
	"context"
	"maps"
	"slices"
	"time"

	"tidemill.dev"
)

// clerk takes in the dead letters that people ask to be replayed, for a lane. It
// alone knows the acts; how far a partition has come the partition knows.
type clerk struct {
	l     *lane
	asked map[int64]*asking // by the act's offset, as long as some partition needs them
}

const (
	clerkAgain = time.Second
	clerkBeat  = 20 * time.Millisecond // until a partition may take in more
)

// heed follows what people ask.
func (l *lane) heed() {
	c := &clerk{l: l, asked: map[int64]*asking{}}
	t := time.NewTimer(0)
	defer t.Stop()
	for l.life.Err() == nil {
		changed := l.d.acts.Changed()
		t.Reset(c.round(l.d.acts.Now()))
		select {
		case <-t.C:
		case <-changed:
		case <-l.asked:
		case <-l.life.Done():
		}
	}
}

// round serves each partition, and tells when to look again.
func (c *clerk) round(acts *tidemill.Acts) time.Duration {
	wait := rest
	needed := map[int64]bool{}
	for _, s := range c.l.all() {
		wait = min(wait, c.serve(s, acts, needed))
	}
	maps.DeleteFunc(c.asked, func(act int64, _ *asking) bool { return !needed[act] })
	return max(wait, 0)
}

// serve tells a partition what it has not heard yet, and has it take in what is
// due.
func (c *clerk) serve(s *shard, acts *tidemill.Acts, needed map[int64]bool) time.Duration {
	ctx, cancel := context.WithTimeout(s.ctx, transactionTime)
	defer cancel()
	err := c.hear(ctx, s, acts)
	wait := rest
	if err == nil {
		wait, err = c.take(ctx, s, acts, needed)
	}
	if err != nil {
		if s.ctx.Err() == nil {
			c.l.d.o.Logger.Warn("dead letters cannot be replayed yet", "stream", c.l.stream.Name, "partition", s.p.number, "reason", err)
		}
		return clerkAgain
	}
	return wait
}

// hear looks through acts that are new to a partition.
func (c *clerk) hear(ctx context.Context, s *shard, acts *tidemill.Acts) error {
	s.mu.Lock()
	from := s.p.heard.next
	s.mu.Unlock()
	if from >= acts.Next() {
		return nil
	}
	heard, ours := acts.Next(), []int64{}
	var failed error
	for _, act := range acts.LetterReplays(from) {
		if !slices.Contains(act.Streams, c.l.stream.Name) {
			continue
		}
		a, err := c.ask(ctx, act)
		if err != nil {
			heard, failed = act.Offset, err
			break
		}
		if len(a.of[s.p.number]) > 0 {
			ours = append(ours, act.Offset)
		}
	}
	s.do(func(p *partition, _ moment) { p.hear(heard, ours...) })
	return failed
}

// ask reads an act that is not known yet.
func (c *clerk) ask(ctx context.Context, act tidemill.LetterReplay) (*asking, error) {
	if a := c.asked[act.Offset]; a != nil {
		return a, nil
	}
	a, err := c.l.readAsking(ctx, act)
	if err == nil {
		c.asked[act.Offset] = a
	}
	return a, err
}

// take has a partition take in letters of the first act that has some due.
func (c *clerk) take(ctx context.Context, s *shard, acts *tidemill.Acts, needed map[int64]bool) (wait time.Duration, err error) {
	s.mu.Lock()
	open, ready := maps.Clone(s.p.heard.open), s.p.hears(c.l.d.clock.now())
	s.mu.Unlock()
	for act := range open {
		needed[act] = true
	}
	maps.DeleteFunc(s.paces, func(act int64, _ *pace) bool { _, still := open[act]; return !still })
	if len(open) > 0 && !ready {
		return clerkBeat, nil
	}
	wait = rest
	for _, offset := range slices.Sorted(maps.Keys(open)) {
		taken, later, err := c.takeOf(ctx, s, acts, offset, open[offset])
		if err != nil {
			return 0, err
		}
		if taken {
			return clerkBeat, nil
		}
		wait = min(wait, later)
	}
	return wait, nil
}

// takeOf has a partition take in what is due of one act.
func (c *clerk) takeOf(ctx context.Context, s *shard, acts *tidemill.Acts, offset int64, done int) (taken bool, wait time.Duration, err error) {
	known := acts.LetterReplays(offset)
	if len(known) == 0 || known[0].Offset != offset {
		return false, rest, nil // who had the partition before knew more acts than we do yet
	}
	act := known[0]
	if wait := c.l.holds(acts, act); wait > 0 {
		return false, wait, nil
	}
	a, err := c.ask(ctx, act)
	if err != nil {
		return false, 0, err
	}
	n, due := s.pace(a, done, time.Now())
	if n == 0 {
		return false, time.Until(due), nil
	}
	in, err := c.l.gatherLetters(ctx, s.p.number, a, done, n)
	if err != nil {
		return false, 0, err
	}
	s.do(func(p *partition, now moment) { p.takeIn(in, now) })
	return true, 0, nil
}

// holds tells how long an act has to wait for its trigger, which is paused, or
// may be one of a newer config than ours.
func (l *lane) holds(acts *tidemill.Acts, act tidemill.LetterReplay) time.Duration {
	l.mu.Lock()
	known := l.terms.triggers[act.Trigger] != nil
	l.mu.Unlock()
	switch {
	case acts.TriggerPaused(act.Trigger):
		return rest
	case !known:
		return time.Until(act.At.Add(l.d.o.Skew))
	}
	return 0
}

// pace tells how many of an act's letters may be taken in now, or when the first
// may.
func (s *shard) pace(a *asking, done int, now time.Time) (n int, due time.Time) {
	if s.paces[a.act.Offset] == nil {
		s.paces[a.act.Offset] = &pace{act: &a.act}
	}
	p, mine := s.paces[a.act.Offset], a.of[s.p.number][done:]
	if len(mine) == 0 {
		return 0, now
	}
	p.goOn(mine[0].index, now)
	for n < min(len(mine), intakeLetters) {
		if due = p.due(mine[n].index); due.After(now) {
			break
		}
		n++
	}
	return n, due
}
