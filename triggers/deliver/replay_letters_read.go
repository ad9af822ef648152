package deliver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/parked"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
)

// letterReplayer reads the dead letters to be replayed for a pipeline. Only it reads the
// commands; each partition knows its own progress.
type letterReplayer struct {
	l     *pipeline
	asked map[int64]*letterReplay // commands by offset, as long as a partition needs them
}

const (
	clerkAgain = time.Second
	clerkBeat  = 20 * time.Millisecond // time until a partition may take more
)

// replayLoop follows the commands.
func (pl *pipeline) replayLoop() {
	c := &letterReplayer{l: pl, asked: map[int64]*letterReplay{}}
	t := time.NewTimer(0)
	defer t.Stop()
	for pl.life.Err() == nil {
		changed := pl.d.commands.Changed()
		t.Reset(c.serveAll(pl.d.commands.Now()))
		select {
		case <-t.C:
		case <-changed:
		case <-pl.commandsRead:
		case <-pl.life.Done():
		}
	}
}

// serveAll serves each partition and returns when to look again.
func (r *letterReplayer) serveAll(acts *commands.State) time.Duration {
	wait := rest
	needed := map[int64]bool{}
	for _, s := range r.l.assignmentsNow() {
		wait = min(wait, r.serve(s, acts, needed))
	}
	maps.DeleteFunc(r.asked, func(act int64, _ *letterReplay) bool { return !needed[act] })
	return max(wait, 0)
}

// serve gives a partition the commands that it does not know yet, and the dead letters
// that are due.
func (r *letterReplayer) serve(s *assignment, acts *commands.State, needed map[int64]bool) time.Duration {
	ctx, cancel := context.WithTimeout(s.ctx, transactionTime)
	defer cancel()
	err := r.readCommands(ctx, s, acts)
	wait := rest
	if err == nil {
		wait, err = r.giveLetters(ctx, s, acts, needed)
	}
	if err != nil {
		if s.ctx.Err() == nil {
			r.l.d.o.Logger.Warn("dispatcher: replaying dead letters failed; retrying", "stream", r.l.stream.Name, "partition", s.p.number, "reason", err)
		}
		return clerkAgain
	}
	return wait
}

// readCommands reads commands that are new to a partition.
func (r *letterReplayer) readCommands(ctx context.Context, s *assignment, acts *commands.State) error {
	s.mu.Lock()
	from := s.p.progress.next
	s.mu.Unlock()
	if from >= acts.Next() {
		return nil
	}
	heard, ours := acts.Next(), []int64{}
	var failed error
	for _, act := range acts.LetterReplays(from) {
		if !slices.Contains(act.Streams, r.l.stream.Name) {
			continue
		}
		a, err := r.readCommand(ctx, act)
		if err != nil {
			heard, failed = act.Offset, err
			break
		}
		if len(a.of[s.p.number]) > 0 {
			ours = append(ours, act.Offset)
		}
	}
	s.apply(func(p *partition, _ millis) { p.commandsRead(heard, ours...) })
	return failed
}

// readCommand reads a command, unless it is cached.
func (r *letterReplayer) readCommand(ctx context.Context, act commands.LetterReplay) (*letterReplay, error) {
	if a := r.asked[act.Offset]; a != nil {
		return a, nil
	}
	a, err := r.l.readReplay(ctx, act)
	if err == nil {
		r.asked[act.Offset] = a
	}
	return a, err
}

// giveLetters gives a partition dead letters of the first command that has some due.
func (r *letterReplayer) giveLetters(ctx context.Context, s *assignment, acts *commands.State, needed map[int64]bool) (wait time.Duration, err error) {
	s.mu.Lock()
	open, ready := maps.Clone(s.p.progress.open), s.p.readsCommands(r.l.d.clock.now())
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
		taken, later, err := r.takeOf(ctx, s, acts, offset, open[offset])
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

// takeOf gives a partition the dead letters of one command that are due.
func (r *letterReplayer) takeOf(ctx context.Context, s *assignment, acts *commands.State, offset int64, done int) (taken bool, wait time.Duration, err error) {
	known := acts.LetterReplays(offset)
	if len(known) == 0 || known[0].Offset != offset {
		return false, rest, nil // the former owner of the partition knew more commands than we do yet
	}
	act := known[0]
	if wait := r.l.holds(acts, act); wait > 0 {
		return false, wait, nil
	}
	a, err := r.readCommand(ctx, act)
	if err != nil {
		return false, 0, err
	}
	n, due := s.pace(a, done, time.Now())
	if n == 0 {
		return false, time.Until(due), nil
	}
	in, err := r.l.gatherLetters(ctx, s.p.number, a, done, n)
	if err != nil {
		return false, 0, err
	}
	s.apply(func(p *partition, now millis) { p.replay(in, now) })
	return true, 0, nil
}

// holds returns how long a command has to wait for its trigger, which is paused or may
// be in a newer config than ours.
func (pl *pipeline) holds(acts *commands.State, act commands.LetterReplay) time.Duration {
	pl.mu.Lock()
	known := pl.settings.triggers[act.Trigger] != nil
	pl.mu.Unlock()
	switch {
	case acts.TriggerPaused(act.Trigger):
		return rest
	case !known:
		return time.Until(act.At.Add(pl.d.o.Skew))
	}
	return 0
}

// pace returns how many of a command's dead letters may be taken now; if none, when the first may.
func (as *assignment) pace(a *letterReplay, done int, now time.Time) (n int, due time.Time) {
	if as.paces[a.act.Offset] == nil {
		as.paces[a.act.Offset] = &pace{act: &a.act, late: min(now.Sub(a.act.At), 0)}
	}
	p, mine := as.paces[a.act.Offset], a.of[as.p.number][done:]
	if len(mine) == 0 {
		return 0, now
	}
	p.goOn(mine[0].index, now)
	for n < min(len(mine), intakeLetters) {
		if due = p.dueTime(mine[n].index); due.After(now) {
			break
		}
		n++
	}
	return n, due
}

// lettersBytes is the size of one read of the dead letters.
const lettersBytes = 1 << 20

// letterReplay is a command to replay dead letters, as far as it concerns one stream.
type letterReplay struct {
	act commands.LetterReplay
	of  map[int32][]askedLetter // dead letters by the partition of their events, in the command's order
}

type askedLetter struct {
	tidemill.LetterRef
	index int  // index in the command
	over  bool // whether it had a receipt when the command was read
}

// readReplay reads a command and finds out which of its dead letters are resolved
// already. A partition that has lost its progress begins again, and another command may
// have named the same dead letters.
func (pl *pipeline) readReplay(ctx context.Context, act commands.LetterReplay) (*letterReplay, error) {
	refs, err := pl.d.commands.Letters(ctx, act)
	if err != nil {
		return nil, err
	}
	ends, err := pl.d.o.Broker.Ends(ctx, tidemill.StreamDeadLetters)
	if err != nil {
		return nil, err
	}
	a := &letterReplay{act: act, of: map[int32][]askedLetter{}}
	first := map[int32]int64{} // first offset, by partition of the dead letters
	for n, r := range refs {
		if r.Stream != pl.stream.Name {
			continue
		}
		one := askedLetter{LetterRef: r, index: n}
		if r.Offset >= endOf(ends, broker.Position{Partition: r.Partition}) {
			pl.skipMissing(&one, "the log ends earlier")
			one.over = true
		} else if at, known := first[r.Partition]; !known || r.Offset < at {
			first[r.Partition] = r.Offset
		}
		a.of[r.Source] = append(a.of[r.Source], one)
	}
	over := map[string]bool{}
	for partition, offset := range first {
		if err := pl.receipts(ctx, broker.Position{Stream: tidemill.StreamDeadLetters, Partition: partition, Offset: offset}, over); err != nil {
			return nil, fmt.Errorf("find the receipts of command %s: %w", act.ID, err)
		}
	}
	for _, all := range a.of {
		for n := range all {
			all[n].over = all[n].over || over[all[n].ID]
		}
	}
	return a, nil
}

// receipts notes the dead letters that have a receipt from a place on.
func (pl *pipeline) receipts(ctx context.Context, from broker.Position, over map[string]bool) error {
	for {
		next, err := pl.d.o.Broker.Read(ctx, from, lettersBytes, func(in *broker.Incoming) bool {
			if in.Err == nil && in.Type == tidemill.TypeEventResolved {
				if r, err := deadletters.ReadReceipt(&in.View); err == nil {
					over[r.Letter] = true
				}
			}
			return true
		})
		if err != nil || next == from.Offset {
			return err
		}
		from.Offset = next
	}
}

const (
	intakeLetters = 64      // per transaction
	intakeBytes   = 1 << 20 // about, but at least one dead letter
	// maxRecalled is the size limit of a replayed event, with room for its history.
	maxRecalled = maxParked - 128<<10
)

// gatherLetters reads the next dead letters of a command.
func (pl *pipeline) gatherLetters(ctx context.Context, number int32, a *letterReplay, done, n int) (*replayBatch, error) {
	mine := a.of[number]
	some := mine[done : done+n]
	found := make([]*replayedLetter, n)
	if err := pl.readLetters(ctx, some, func(at int, in *broker.Incoming) error {
		one, err := pl.replayedEvent(ctx, number, a, &some[at], in)
		found[at] = one
		return err
	}); err != nil {
		return nil, err
	}
	in := &replayBatch{act: a.act.Offset, upTo: done}
	bytes := 0
	for _, one := range found {
		if one != nil {
			if bytes += parked.Size(&one.view); bytes > intakeBytes && len(in.all) > 0 {
				break
			}
			in.all = append(in.all, *one)
		}
		in.upTo++
	}
	in.last = in.upTo == len(mine)
	return in, nil
}

// readLetters calls fn with the dead letters that have no receipt and can be read, in
// the order of the log.
func (pl *pipeline) readLetters(ctx context.Context, some []askedLetter, fn func(at int, in *broker.Incoming) error) error {
	order := make([]int, 0, len(some))
	for at := range some {
		if !some[at].over {
			order = append(order, at)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(some[a].Partition, some[b].Partition), cmp.Compare(some[a].Offset, some[b].Offset))
	})
	for len(order) > 0 {
		first := some[order[0]]
		failed := error(nil)
		from := broker.Position{Stream: tidemill.StreamDeadLetters, Partition: first.Partition, Offset: first.Offset}
		left := order
		_, err := pl.d.o.Broker.Read(ctx, from, loadBytes, func(in *broker.Incoming) bool {
			left = pl.skipBefore(some, left, first.Partition, in.Offset)
			for len(left) > 0 && some[left[0]].Partition == first.Partition && some[left[0]].Offset == in.Offset && failed == nil {
				failed = fn(left[0], in)
				left = left[1:]
			}
			return failed == nil && len(left) > 0 && some[left[0]].Partition == first.Partition
		})
		if err == nil {
			err = failed
		}
		if err != nil {
			return fmt.Errorf("read the dead letters to be replayed: %w", err)
		}
		if len(left) == len(order) {
			left = pl.skipBefore(some, left, first.Partition, first.Offset+1)
		}
		order = left
	}
	return nil
}

// skipBefore skips dead letters before an offset, where the log has been cut.
func (pl *pipeline) skipBefore(some []askedLetter, order []int, partition int32, offset int64) []int {
	for len(order) > 0 && some[order[0]].Partition == partition && some[order[0]].Offset < offset {
		pl.skipMissing(&some[order[0]], "the log does not hold it")
		order = order[1:]
	}
	return order
}

func (pl *pipeline) skipMissing(r *askedLetter, why string) {
	pl.d.o.Logger.Warn("dispatcher: a dead letter to replay does not exist; it is skipped", "event", r.ID, "stream", tidemill.StreamDeadLetters, "partition", r.Partition, "offset", r.Offset, "reason", why)
}

// replayedEvent returns the event of a dead letter; none if the record is not the
// requested dead letter. An event that cannot be parked fails again at once.
func (pl *pipeline) replayedEvent(ctx context.Context, number int32, a *letterReplay, r *askedLetter, in *broker.Incoming) (*replayedLetter, error) {
	if in.Err != nil || in.ID != r.ID {
		pl.skipMissing(r, "another event has this offset")
		return nil, nil
	}
	letter, err := deadletters.Read(&in.View)
	if err != nil || letter.Trigger != a.act.Trigger || letter.Stream != pl.stream.Name || letter.Partition != number {
		pl.skipMissing(r, "it differs from the command")
		return nil, nil
	}
	v, err := letter.Original()
	if err == nil && parked.Size(&v) > maxRecalled {
		err = fmt.Errorf("the event is too large to be parked: it may have %d KiB", maxRecalled>>10)
	}
	ref := refOf(r)
	if err != nil {
		return nil, pl.refuseReplay(ctx, a, ref, &in.View, fmt.Sprintf("trigger %s: the dead letter cannot be replayed: %s", a.act.Trigger, err))
	}
	return &replayedLetter{trigger: a.act.Trigger, replay: replayName(a.act.ID, letter.Replay), letter: ref.String(), source: letter.Offset, view: v}, nil
}

// refuseReplay writes a new dead letter in place of one whose replay cannot be attempted.
func (pl *pipeline) refuseReplay(ctx context.Context, a *letterReplay, ref letterRef, letter *broker.View, reason string) error {
	v, err := deadletters.Again(letter, a.act.ID, reason, time.Now())
	if err != nil {
		return err
	}
	own := letter.Clone()
	if err := pl.d.deadLetters.publish(ctx, &v); err != nil {
		return err
	}
	return pl.d.deadLetters.resolve(ctx, ref, &own, deadletters.Receipt{Outcome: deadletters.FailedAgain, Reason: reason, By: a.act.By, Command: a.act.ID, NewLetter: v.ID})
}
