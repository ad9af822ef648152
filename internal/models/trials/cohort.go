package trials

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/broker/retry"
)

// cohort has trials that read the streams together. A new trial reads the past in a cohort of its own, and
// joins the first cohort where that one reads.
type cohort struct {
	trials map[string]*trial
	ids    map[string]string  // ids of the streams
	next   map[string][]int64 // next offsets, by stream and partition
	behind map[string]int64   // records that are left, by stream
}

// readBytes is how much of a partition is read at a time: little, because decoding it cannot be interrupted.
const readBytes = 256 << 10

// streams are the streams that trials follow. The input stream is read where a champion has answered.
func (r *runner) streams() []string { return []string{r.Scorer.To, tidemill.StreamOutcomes} }

func (r *runner) openCohort(ctx context.Context, start broker.Start) (*cohort, error) {
	c := &cohort{trials: map[string]*trial{}, ids: map[string]string{}, next: map[string][]int64{}, behind: map[string]int64{}}
	for _, stream := range r.streams() {
		var err error
		if c.ids[stream], err = r.Broker.TopicID(ctx, stream); err != nil { // before the places: a later id would not be theirs
			return nil, err
		}
		places, err := r.Broker.Places(ctx, stream, start)
		if err != nil {
			return nil, fmt.Errorf("find where to read stream %s: %w", stream, err)
		}
		c.next[stream] = make([]int64, len(places))
		for _, p := range places {
			c.next[stream][p.Partition] = p.Offset
		}
	}
	return c, nil
}

// advance lets each cohort read a bit. It reports whether there is more to read now.
func (r *runner) advance(ctx context.Context) (more bool, err error) {
	if len(r.cohorts) == 0 {
		return false, nil
	}
	ends := map[string][]int64{}
	for _, stream := range r.streams() {
		at, err := r.Broker.Ends(ctx, stream)
		if err != nil {
			return false, fmt.Errorf("look at stream %s: %w", stream, err)
		}
		ends[stream] = make([]int64, len(at))
		for _, p := range at {
			ends[stream][p.Partition] = p.Offset
		}
	}
	if err := r.dropLost(ctx, ends); err != nil || len(r.cohorts) == 0 {
		return false, err
	}
	r.pace.heads(ends[r.Scorer.To])
	for _, c := range r.cohorts {
		c.grow(ends)
	}
	for _, c := range r.cohorts {
		limit := ends
		if c != r.cohorts[0] {
			limit = r.cohorts[0].next
		}
		read, err := r.readOnce(ctx, c, limit)
		if err != nil {
			return false, err
		}
		more = more || read
	}
	r.merge()
	return more, nil
}

// dropLost begins the trials of a cohort again if one of its streams was cut or created again: its places and its evidence
// are of events that are gone.
func (r *runner) dropLost(ctx context.Context, ends map[string][]int64) error {
	ids := map[string]string{}
	if time.Since(r.asked) >= r.Every {
		for _, stream := range r.streams() {
			var err error
			if ids[stream], err = r.Broker.TopicID(ctx, stream); err != nil {
				return err
			}
		}
		r.asked = time.Now()
	}
	for _, c := range slices.Clone(r.cohorts) {
		for _, stream := range r.streams() {
			id, asked := ids[stream]
			if (!asked || id == c.ids[stream]) && !c.isBeyond(stream, ends[stream]) {
				continue
			}
			r.Logger.Warn("trials: a stream was cut or created again; its trials begin again", "scorer", r.Scorer.Name, "stream", stream)
			for model := range maps.Clone(c.trials) {
				r.drop(model)
				r.table.mark(model)
			}
			break
		}
	}
	return nil
}

// grow adds the partitions that the streams have got. All of their records are newer than the trials.
func (c *cohort) grow(ends map[string][]int64) {
	for stream, at := range ends {
		for len(c.next[stream]) < len(at) {
			c.next[stream] = append(c.next[stream], 0)
			for _, t := range c.trials {
				t.from[stream] = append(t.from[stream], 0)
			}
		}
	}
}

// isBeyond reports whether a cohort has read more than a stream has.
func (c *cohort) isBeyond(stream string, ends []int64) bool {
	for p, next := range c.next[stream] {
		if next > at(ends, p) {
			return true
		}
	}
	return false
}

// readOnce reads answers and outcomes, and lets the candidates answer.
func (r *runner) readOnce(ctx context.Context, c *cohort, limit map[string][]int64) (more bool, err error) {
	for _, stream := range r.streams() {
		c.behind[stream] = 0
		for partition := range c.next[stream] {
			if partition >= len(limit[stream]) {
				continue
			}
			read, err := r.readPartition(ctx, c, broker.Position{Stream: stream, Partition: int32(partition), Offset: c.next[stream][partition]}, limit[stream][partition])
			if err != nil {
				return false, err
			}
			left := max(0, limit[stream][partition]-c.next[stream][partition])
			more = more || read && left > 0
			c.behind[stream] += left
		}
	}
	return more, r.answer(ctx, c)
}

// readPartition reads a part of a partition up to a limit, and reports whether it has read anything.
func (r *runner) readPartition(ctx context.Context, c *cohort, at broker.Position, limit int64) (bool, error) {
	if at.Offset >= limit {
		return false, nil
	}
	next, err := r.Broker.Read(ctx, at, readBytes, func(e *broker.Incoming) bool {
		if e.Offset >= at.Offset && e.Offset < limit && e.Err == nil {
			c.take(r.Scorer.From, r.Scorer.Name, at, e)
		}
		return r.pace.rest(ctx) == nil && e.Offset < limit-1
	})
	if err != nil {
		return false, err
	}
	next = min(max(next, at.Offset), limit)
	c.next[at.Stream][at.Partition] = next
	return next > at.Offset, nil
}

// take adds an answer or an outcome to the trial of its model.
func (c *cohort) take(from, scorer string, at broker.Position, e *broker.Incoming) {
	model, _ := e.Attribute(tidemill.AttrModel)
	t := c.trials[model]
	if t == nil {
		return
	}
	t.take(from, scorer, at, e)
}

func (t *trial) take(from, scorer string, at broker.Position, e *broker.Incoming) {
	if version, _ := e.Attribute(tidemill.AttrModelVersion); version != strconv.Itoa(t.champion) {
		return
	}
	switch e.Type {
	case tidemill.TypeScored:
		if in, ok := broker.ParsePlace(e.ID); ok && in.Stream == from {
			t.records++
			source, _ := e.Attribute(tidemill.AttrCausationSource)
			id, _ := e.Attribute(tidemill.AttrCausationID)
			t.seen.addAnswer(place{in.Partition, in.Offset}, causeOf(source, id), jsonscan.TextAt(e.Data, []string{"label"}), at.Partition)
		}
	case tidemill.TypeOutcome, tidemill.TypeOutcomeCorrected:
		d, ok := outcomeOf(e)
		if in, is := broker.ParsePlace(d.Place); ok && is && in.Stream == from && d.Scorer == scorer {
			t.records++
			t.seen.addOutcome(place{in.Partition, in.Offset}, &d, place{at.Partition, e.Offset})
		}
	}
}

// merge lets cohorts that have reached the first one go on with it.
func (r *runner) merge() {
	head := r.cohorts[0]
	for _, c := range r.cohorts[1:] {
		if !c.reached(head) {
			continue
		}
		for model, t := range c.trials {
			for stream, from := range t.from {
				for p := range from { // a partition where the trial begins after the head's place
					from[p] = min(from[p], at(head.next[stream], p))
				}
			}
			head.trials[model] = t
		}
		clear(c.trials)
	}
	r.dropEmpty()
}

func at(offsets []int64, partition int) int64 {
	if partition < len(offsets) {
		return offsets[partition]
	}
	return 0
}

func (c *cohort) reached(head *cohort) bool {
	for stream, next := range head.next {
		for p, offset := range next {
			if at(c.next[stream], p) < offset {
				return false
			}
		}
	}
	return true
}

// behind returns how many answers a trial has not read yet.
func (r *runner) behind(t *trial) int64 {
	for i, c := range r.cohorts {
		if c.trials[t.v.Model] != t {
			continue
		}
		n := c.behind[r.Scorer.To]
		if i > 0 {
			n += r.cohorts[0].behind[r.Scorer.To]
		}
		return n
	}
	return 0
}

// read returns the records with the evidence of a trial: those of partitions that have some of it.
func (r *runner) read(t *trial) (all []tidemill.TrialRange) {
	next := map[string][]int64{}
	for _, c := range r.cohorts {
		if c.trials[t.v.Model] == t {
			next = c.next
		}
	}
	return t.ranges(r.Scorer.From, r.Scorer.To, next)
}

func (t *trial) ranges(in, out string, next map[string][]int64) (all []tidemill.TrialRange) {
	inputs := map[int32]tidemill.TrialRange{}
	answers, outcomes := map[int32]bool{}, map[int32]bool{}
	for at, p := range t.seen.pairs {
		if p.champion == "" || !p.answered {
			continue
		}
		answers[p.answer] = true
		if p.outcome.offset >= 0 {
			outcomes[p.outcome.partition] = true
		}
		one, is := inputs[at.partition]
		if !is {
			one = tidemill.TrialRange{Stream: in, Partition: at.partition, From: at.offset}
		}
		one.From, one.To = min(one.From, at.offset), max(one.To, at.offset+1)
		inputs[at.partition] = one
	}
	all = slices.Collect(maps.Values(inputs))
	for stream, partitions := range map[string]map[int32]bool{out: answers, tidemill.StreamOutcomes: outcomes} {
		for p := range partitions {
			all = append(all, tidemill.TrialRange{Stream: stream, Partition: p, From: t.from[stream][p], To: next[stream][p]})
		}
	}
	slices.SortFunc(all, func(a, b tidemill.TrialRange) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Partition, b.Partition))
	})
	return all
}

// wanted is an event that a candidate has to read.
type wanted struct {
	at place
	t  *trial
}

// answer lets the candidates of a cohort answer the events that their champions have answered.
func (r *runner) answer(ctx context.Context, c *cohort) error {
	var all []wanted
	again := 0
	for _, t := range c.trials { // in any order, so that each candidate is tried again
		if t.lastErr != "" && len(t.seen.needed) > 0 {
			if again++; again > mostAway {
				continue
			}
		}
		for _, at := range t.seen.needed {
			all = append(all, wanted{at, t})
		}
	}
	w := &answering{Options: r.Options, pace: &r.pace, open: map[string]Candidate{}}
	defer w.close()
	err := w.answer(ctx, all)
	for _, t := range c.trials {
		t.seen.forgetAnswered()
	}
	return err
}

// answering lets candidates answer events in the order of their stream.
type answering struct {
	Options
	pace *pace
	open map[string]Candidate // by model
}

// mostOpen is the number of models that are in use at a time.
const mostOpen = 64

// gap is the number of records that are read and left out before a read begins anew.
const gap = 2000

// mostAway is the number of candidates in a row that cannot answer now. After them the others wait too, because the store may
// not answer.
const mostAway = 3

func (w *answering) answer(ctx context.Context, all []wanted) error {
	slices.SortFunc(all, func(a, b wanted) int { return a.at.compare(b.at) })
	for away := 0; len(all) > 0 && away < mostAway; {
		n, err := w.answerSome(ctx, all)
		if err != nil && !errors.Is(err, ErrLater) {
			return err
		}
		if all = all[n:]; n > 0 {
			away = 0
		}
		if err != nil {
			away++
			t := all[0].t
			w.noteAway(t, err)
			all = slices.DeleteFunc(all, func(a wanted) bool { return a.t == t })
		}
	}
	return nil
}

// noteAway notes that the candidate of a trial cannot answer now. The same reason is logged once.
func (w *answering) noteAway(t *trial, err error) {
	if t.lastErr != err.Error() {
		w.Logger.Warn("trials: a candidate cannot answer now; retrying", "scorer", w.Scorer.Name, "model", t.v.Model, "version", t.v.Number, "reason", err)
	}
	t.lastErr = err.Error()
}

// answerSome reads once, and returns how many of the wanted events are done. ErrLater is of the next one.
func (w *answering) answerSome(ctx context.Context, all []wanted) (done int, err error) {
	first := all[0].at
	var failed error
	next, err := w.Broker.Read(ctx, broker.Position{Stream: w.Scorer.From, Partition: first.partition, Offset: first.offset}, readBytes, func(e *broker.Incoming) bool {
		at := place{first.partition, e.Offset}
		for done < len(all) && all[done].at.compare(at) < 0 {
			all[done].lost()
			done++
		}
		for ; done < len(all) && all[done].at == at; done++ {
			if failed = w.one(ctx, all[done], e); failed != nil {
				return false
			}
		}
		if failed = w.pace.rest(ctx); failed != nil {
			return false
		}
		return done < len(all) && all[done].at.partition == at.partition && all[done].at.offset-at.offset < gap
	})
	switch {
	case err == nil && failed == nil && done == 0 && next <= first.offset: // the log has lost its end, or a new leader does not show it for a moment
		there, err := w.hasPlace(ctx, first)
		if err != nil || there {
			return 0, err
		}
		all[0].lost()
		return 1, nil
	case errors.Is(err, broker.ErrCut): // the log has lost its end, or was made again
		all[0].lost()
		return 1, nil
	case err != nil || failed != nil:
		return done, cmp.Or(failed, err)
	}
	for done < len(all) && all[done].at.compare(place{first.partition, next}) < 0 {
		all[done].lost()
		done++
	}
	return done, nil
}

// hasPlace reports whether the log of the stream reaches a place.
func (w *answering) hasPlace(ctx context.Context, at place) (bool, error) {
	ends, err := w.Broker.Ends(ctx, w.Scorer.From)
	return slices.ContainsFunc(ends, func(end broker.Position) bool { return end.Partition == at.partition && end.Offset > at.offset }), err
}

// lost notes that an event is no longer on its stream.
func (a wanted) lost() {
	a.t.seen.drop(a.at)
	a.t.records++
}

// one lets a candidate answer an event.
func (w *answering) one(ctx context.Context, a wanted, e *broker.Incoming) error {
	if e.Err != nil || !a.t.seen.isOf(a.at, e) {
		a.lost()
		return nil
	}
	c, err := w.candidate(ctx, a.t)
	if errors.Is(err, ErrLater) || ctx.Err() != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	began := time.Now()
	label := ""
	if err == nil {
		label, err = c.Label(&e.View)
	}
	took := time.Since(began)
	if errors.Is(err, ErrLater) {
		return err
	}
	a.t.lastErr = ""
	a.t.seen.addCandidate(a.at, label, err != nil, took)
	a.t.records++
	return nil
}

func (w *answering) candidate(ctx context.Context, t *trial) (Candidate, error) {
	if c := w.open[t.v.Model]; c != nil {
		return c, nil
	}
	if len(w.open) >= mostOpen {
		w.close()
	}
	c, err := w.Load(ctx, &t.v.Version)
	if err == nil {
		w.open[t.v.Model] = c
	}
	return c, err
}

func (w *answering) close() {
	for model, c := range w.open {
		c.Close()
		delete(w.open, model)
	}
}

// pace keeps the trials of a scorer quiet: the scorer may run in this process, and its events come first. All work of
// trials is one goroutine, which lets others run after each slice. While the stream of answers grows, it
// also sleeps, so that it keeps to its share of one core. The time of a slice includes the time in which other work had the
// core, so the trials become slower on a busy machine. While the stream is quiet there is no limit.
type pace struct {
	share float64
	ends  []int64   // ends of the stream of answers
	grew  time.Time // time at which the stream was last seen to grow
	since time.Time // beginning of the slice
}

// slice is the time after which other goroutines may run. An event of the scorer may have to wait for that long.
const slice = 250 * time.Microsecond

func (p *pace) begin() { p.since = time.Now() }

// quiet is the time without new answers after which the scorer counts as idle.
const quiet = time.Second

// heads gets the present ends of the stream of answers.
func (p *pace) heads(ends []int64) {
	if !slices.Equal(p.ends, ends) {
		p.ends, p.grew = ends, time.Now()
	}
}

// rest ends a slice that has lasted long enough. It is called after each event.
func (p *pace) rest(ctx context.Context) error {
	worked := time.Since(p.since)
	if worked < slice {
		return nil
	}
	defer p.begin()
	if p.share < 1 && time.Since(p.grew) < quiet {
		return retry.Sleep(ctx, time.Duration(float64(worked)*(1/p.share-1)))
	}
	runtime.Gosched()
	return context.Cause(ctx)
}
