package champions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

const (
	// lookEvery is how often the position in the log is read while a caller waits, because markers
	// at the log's end cause no delivery. restEvery is the interval while no caller waits.
	lookEvery, restEvery = 20 * time.Millisecond, time.Second

	firstPause, longestPause = 100 * time.Millisecond, 5 * time.Second
)

// errLost reports that the log does not continue at the table's position.
var errLost = errors.New("facts that were to be read next are not on the log")

// begin reads the table and then the facts up to the log's present end. No caller has seen a
// champion yet, so it announces no changes.
func (t *Table) begin(ctx context.Context) error {
	changed := t.o.Changed
	t.o.Changed = func(string, Champion) {}
	defer func() { t.o.Changed = changed }()
	if err := t.snapshot(ctx, false); err != nil {
		return err
	}
	ends, err := t.o.Broker.Ends(ctx, tidemill.StreamFacts)
	if err != nil {
		return err
	}
	if err := t.open(ctx); err != nil {
		return err
	}
	places := make([]int64, len(ends))
	for _, end := range ends {
		places[end.Partition] = end.Offset
	}
	for {
		if done, _ := t.progress.covers(places); done {
			return nil
		}
		if err := t.handleNext(ctx, lookEvery); err != nil {
			return err
		}
	}
}

// open starts to read the facts after the table's position.
func (t *Table) open(ctx context.Context) error {
	c, err := t.o.Broker.Consumer(ctx, broker.ConsumerOptions{Streams: []string{tidemill.StreamFacts}, Start: broker.Earliest(),
		Assigned: func(_ context.Context, at []broker.Position) ([]broker.Position, error) {
			t.checkPartitions(at)
			return at, t.seekToPlaces(at)
		}})
	if err != nil {
		return err
	}
	t.consumer = c
	t.partitions.Store(int32(len(c.Positions())))
	return nil
}

// seekToPlaces moves partitions to the table's position.
func (t *Table) seekToPlaces(at []broker.Position) error {
	for i := range at {
		next := t.progress.visibleUpTo(at[i].Partition)
		if at[i].Offset > next {
			return fmt.Errorf("%w: partition %d begins at %d, and offset %d is next", errLost, at[i].Partition, at[i].Offset, next)
		}
		at[i].Offset = next
	}
	return nil
}

// checkPartitions reports an error if the facts have more partitions than before: the facts of a
// model are no longer in one order. The ledger cannot handle that either.
func (t *Table) checkPartitions(at []broker.Position) {
	had, now := t.partitions.Load(), int32(0)
	for _, p := range at {
		now = max(now, p.Partition+1)
	}
	if had == 0 || now <= had {
		return
	}
	err := fmt.Errorf("stream %s had %d partitions and has %d: newer facts of a model may be on another one than older ones, so their order is not known; create the install again with the partitions that it needs",
		tidemill.StreamFacts, had, now)
	t.progress.setLasting(err)
	t.o.Logger.Error("champions: facts are missing; champions may be wrong from here on", "stream", tidemill.StreamFacts, "reason", err)
}

// handleNext handles a delivery that comes within a time, or else notes how far the log has been
// read.
func (t *Table) handleNext(ctx context.Context, limit time.Duration) error {
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if t.progress.setWake(cancel) && limit > lookEvery {
		cancel()
		wait, cancel = context.WithTimeout(ctx, lookEvery)
		defer cancel()
	}
	d, err := t.consumer.Poll(wait)
	switch {
	case err == nil:
		defer d.Done()
		return t.foldDelivery(d)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case wait.Err() != nil:
		return t.notePositions()
	}
	return err
}

// notePositions notes positions that were read without facts. All deliveries of Poll have been
// handled by then.
func (t *Table) notePositions() error {
	for _, p := range t.consumer.Positions() {
		switch at := t.progress.visibleUpTo(p.Partition); {
		case p.Offset < at:
			return back(p.Partition, p.Offset, at)
		case p.Offset > at || int(p.Partition) >= t.progress.partitions():
			t.progress.noteVisible(p.Partition, p.Offset)
		}
	}
	return nil
}

func back(partition int32, offset, at int64) error {
	return fmt.Errorf("%w: partition %d ends at %d, and offset %d is next", errLost, partition, offset, at)
}

// foldDelivery folds a delivery into the table.
func (t *Table) foldDelivery(d *broker.Delivery) error {
	at := t.progress.visibleUpTo(d.Partition)
	if d.Next() < at {
		return back(d.Partition, d.Next(), at)
	}
	if d.Events[0].Err != nil { // the error may mean that events were deleted
		if err := t.checkBegin(d.Partition, at); err != nil {
			return err
		}
	}
	t.progress.tell(d.Partition, d.Next())
	var changes []change
	for i := range d.Events {
		if f, ok := ledger.ModelFact(&d.Events[i], d.Partition); ok {
			changes = t.apply(changes, f)
		}
	}
	t.last.Note(d)
	t.progress.noteVisible(d.Partition, d.Next())
	t.announce(changes)
	return nil
}

// checkFilling compares the table with the log if Redis has been filled again. The ledger fills it again
// when it finds that the log is another one, but also after a flush.
func (t *Table) checkFilling(ctx context.Context) error {
	now := t.o.Ledger.Filling()
	if now == t.filling {
		return nil
	}
	if err := t.o.Ledger.CheckLog(ctx, t.last); err != nil {
		return err
	}
	t.filling = now
	return nil
}

// checkBegin returns an error if a partition begins after an offset.
func (t *Table) checkBegin(partition int32, offset int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), longestPause)
	defer cancel()
	starts, err := t.o.Broker.Places(ctx, tidemill.StreamFacts, broker.Earliest())
	if err != nil {
		return err
	}
	for _, s := range starts {
		if s.Partition == partition && s.Offset > offset {
			return fmt.Errorf("%w: partition %d begins at %d, and offset %d is next", errLost, partition, s.Offset, offset)
		}
	}
	return nil
}

// change is a new champion to announce.
type change struct {
	model string
	now   Champion
}

func (t *Table) apply(changes []change, f fold.Fact) []change {
	c := t.cells.findOrCreate(f.Model)
	m := c.state.apply(f.Model, f)
	if m == nil {
		return changes
	}
	if now, changed := c.show(m); changed {
		changes = append(changes, change{f.Model, now})
	}
	if now, changed := c.showCanary(m); changed {
		changes = append(changes, change{CanaryName(f.Model), now})
	}
	return changes
}

func (t *Table) announce(changes []change) {
	for _, c := range changes {
		t.o.Changed(c.model, c.now)
	}
}

// run reads facts until ctx ends; after an error it opens another consumer.
func (t *Table) run(ctx context.Context) {
	backoff := retry.Backoff{First: firstPause, Cap: longestPause}
	for {
		err := t.checkFilling(ctx)
		if err == nil {
			err = t.handleNext(ctx, restEvery)
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			t.progress.fail(nil)
			backoff.Reset()
			continue
		}
		pause := backoff.Next()
		if t.progress.fail(fmt.Errorf("follow the facts: %w", err)) {
			t.o.Logger.Warn("champions: reading the facts failed; retrying", "stream", tidemill.StreamFacts, "reason", err, "after", pause)
		}
		if retry.Sleep(ctx, pause) != nil {
			return
		}
		if err := t.reopen(ctx); err != nil {
			t.progress.fail(fmt.Errorf("follow the facts: %w", err))
		}
	}
}

// reopen keeps the closed consumer if it cannot open another; the error of the closed consumer
// makes run try again.
func (t *Table) reopen(ctx context.Context) error {
	_ = t.consumer.Close(ctx) // it has stopped reading, and has no group to leave
	anew, err := t.logWasRecreated(ctx)
	if err == nil && !anew {
		err = t.open(ctx)
	}
	if anew || errors.Is(err, errLost) {
		if err = t.snapshot(ctx, anew); err == nil {
			err = t.open(ctx)
		}
	}
	return err
}

// logWasRecreated reports whether the log ends before the table's position, or does not have the
// table's last facts. The stream was deleted and created again, or a server without all facts became
// its leader.
func (t *Table) logWasRecreated(ctx context.Context) (bool, error) {
	ends, err := t.o.Broker.Ends(ctx, tidemill.StreamFacts)
	if err != nil {
		return false, err
	}
	anew := len(ends) < t.progress.partitions()
	for _, end := range ends {
		anew = anew || end.Offset < t.progress.visibleUpTo(end.Partition)
	}
	if anew {
		return true, nil
	}
	err = t.o.Ledger.CheckLog(ctx, t.last)
	if errors.Is(err, ledger.ErrCut) {
		return true, nil
	}
	return false, err
}

// Places returns the offset after the last fact of the table in each partition. Earlier results of
// Champion are not newer.
func (t *Table) Places() []int64 { return t.progress.places() }

// askEvery is how often Reached checks that the log can still reach the places.
const askEvery = time.Second

// Reached waits until the table is as new as the places. Places that the log does not have are an
// error, and so are more places than partitions: their facts are gone.
func (t *Table) Reached(ctx context.Context, places []int64) error {
	done, changed := t.progress.covers(places)
	if done {
		return nil
	}
	t.progress.await(1)
	defer t.progress.await(-1)
	for {
		if err := t.checkPlaces(ctx, places); err != nil {
			return err
		}
		ask := time.NewTimer(askEvery)
		for waiting := true; waiting; {
			select {
			case <-changed:
			case <-ask.C:
				waiting = false
			case <-ctx.Done():
				ask.Stop()
				return t.late(ctx)
			}
			if done, changed = t.progress.covers(places); done {
				ask.Stop()
				return nil
			}
		}
	}
}

// ReachedTotal waits until the table is as new as places whose sum is given. It waits for all facts
// on the stream, because each of the places is on the stream. A sum that the stream does not have is
// an error.
func (t *Table) ReachedTotal(ctx context.Context, total int64) error {
	ends, err := t.o.Broker.Ends(ctx, tidemill.StreamFacts)
	if err != nil {
		return err
	}
	places := make([]int64, len(ends))
	there := int64(0)
	for i, end := range ends {
		places[i] = end.Offset
		there += end.Offset
	}
	if there < total {
		return fmt.Errorf("%w: its partitions together end at %d, and facts up to %d were known", errFactsLost, there, total)
	}
	return t.Reached(ctx, places)
}

// errFactsLost says what to do. More facts may come and hide the loss, so the message is logged each
// time.
var errFactsLost = fmt.Errorf("stream %s has lost facts that scorers knew: it was restored from an older copy, cut, or created again; "+
	"bring the missing facts back, or accept the loss by setting the group's offsets as docs/runbooks/scorer-stops.md shows", tidemill.StreamFacts)

func (t *Table) late(ctx context.Context) error {
	err := fmt.Errorf("wait until the champions are as new as those that were scored by: %w", context.Cause(ctx))
	if why := t.Err(); why != nil {
		err = fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// checkPlaces returns an error if the log cannot have the places. It returns nil if Kafka does not
// answer.
func (t *Table) checkPlaces(ctx context.Context, places []int64) error {
	ends, err := t.o.Broker.Ends(ctx, tidemill.StreamFacts)
	if err != nil {
		return nil
	}
	for partition, next := range places {
		if partition >= len(ends) {
			if next == 0 {
				continue
			}
			return fmt.Errorf("%w: it has %d partitions, and facts of partition %d were known", errFactsLost, len(ends), partition)
		}
		if end := ends[partition].Offset; next > end {
			return fmt.Errorf("%w: partition %d ends at %d, and facts up to %d were known", errFactsLost, partition, end, next)
		}
	}
	return nil
}

// progress is the table's position in each partition. reportedPlaces is raised before readers can
// see the effect of a fact, and visiblePlaces after readers can see it. So reportedPlaces covers
// every effect that a reader has seen. A caller that has waited for visiblePlaces sees the effect.
type progress struct {
	mu             sync.Mutex
	reportedPlaces []int64
	visiblePlaces  []int64
	err            error // present error of reading; nil if there is none
	lasting        error // permanent fault of the stream; nil if there is none
	changed        chan struct{}
	waiting        int
	wake           func() // function that ends a wait for facts
}

// raisePlace sets one of the places, which only grow.
func raisePlace(places []int64, partition int32, next int64) []int64 {
	for len(places) <= int(partition) {
		places = append(places, 0)
	}
	places[partition] = max(places[partition], next)
	return places
}

func (p *progress) tell(partition int32, next int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reportedPlaces = raisePlace(p.reportedPlaces, partition, next)
}

// noteVisible notes that the facts before next can be seen.
func (p *progress) noteVisible(partition int32, next int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reportedPlaces, p.visiblePlaces = raisePlace(p.reportedPlaces, partition, next), raisePlace(p.visiblePlaces, partition, next)
	close(p.changed)
	p.changed = make(chan struct{})
}

// restart clears all places, because the stream of facts was created again.
func (p *progress) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reportedPlaces, p.visiblePlaces = nil, nil
}

// places returns a copy of reportedPlaces.
func (p *progress) places() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.reportedPlaces)
}

// visibleUpTo returns how far the facts of a partition can be seen.
func (p *progress) visibleUpTo(partition int32) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if int(partition) >= len(p.visiblePlaces) {
		return 0
	}
	return p.visiblePlaces[partition]
}

func (p *progress) partitions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.visiblePlaces)
}

// covers reports whether the places have been reached; if not, it returns a channel that is closed
// at the next progress.
func (p *progress) covers(places []int64) (bool, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, next := range places {
		if next > 0 && (i >= len(p.visiblePlaces) || p.visiblePlaces[i] < next) {
			return false, p.changed
		}
	}
	return true, nil
}

// await changes the number of waiting callers. While a caller waits, the reader checks its position
// often.
func (p *progress) await(by int) {
	p.mu.Lock()
	p.waiting += by
	wake := p.wake
	p.mu.Unlock()
	if by > 0 && wake != nil {
		wake()
	}
}

// setWake sets the function that ends a wait for facts, and reports whether a caller waits.
func (p *progress) setWake(wake func()) (awaited bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wake = wake
	return p.waiting > 0
}

// fail sets the present error of reading, or nil, and reports whether reading has started or ceased
// to fail.
func (p *progress) fail(err error) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	news = (p.err == nil) != (err == nil)
	p.err = err
	return news
}

// setLasting sets a permanent fault.
func (p *progress) setLasting(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lasting = err
}

func (p *progress) why() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	return p.lasting
}
