package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// swapHot is the number of models that change in turn. Most events belong to these models, so that
// a new version soon has an event to score.
const swapHot = 10

// The lengths of the alternating windows with and without changes of champions.
const (
	swapWindow = 2 * time.Second
	restWindow = time.Second
)

// swaps measures a scorer at full load while one champion per second changes.
type swaps struct {
	*scoreWorld
	versions [swapHot]int               // newest registered version of each model
	promoted [swapHot]map[int]time.Time // time of the proposal, by version
	first    [swapHot]map[int]time.Time // time of the first output, by version
	with     []float64                  // events per second
	without  []float64
	counts   auditCounts
	noChamp  int
	blamed   error
	took     sample
	next     int
	dry      bool // the round has read the stream to its end
}

func (w *scoreWorld) measureSwaps(ctx context.Context, o *scoreOutcome) error {
	if err := w.fill(ctx, w.Warm+w.Events); err != nil {
		return err
	}
	s := &swaps{scoreWorld: w}
	for i := range s.versions {
		s.versions[i], s.promoted[i], s.first[i] = 1, map[int]time.Time{}, map[int]time.Time{}
	}
	var ratios []float64
	for range w.scorePlan.rounds {
		if err := s.round(ctx); err != nil {
			return err
		}
		ratios = append(ratios, spreadOf(s.with).median/spreadOf(s.without).median)
		o.Notes = append(o.Notes, fmt.Sprintf("%.0f events/s while champions change, %.0f while they do not", spreadOf(s.with).median, spreadOf(s.without).median))
	}
	s.took.sorted()
	o.Figures["swaps / no swaps"] = spreadOf(ratios).median
	o.Figures["promotion to first event p99"] = milliseconds(s.took.at(0.99))
	o.Figures["promotion to first event p50"] = milliseconds(s.took.at(0.5))
	s.counts.tell(o, s.blamed)
	o.Figures[figureNoChampion] = float64(s.noChamp)
	o.Notes = append(o.Notes, fmt.Sprintf("%d promotions, of the %d models with most events; until the first event of each: p50 %s, longest %s",
		len(s.took), swapHot, micros(s.took.at(0.5)), micros(s.took.at(1))))
	return nil
}

// round has one scorer read the stream.
func (s *swaps) round(ctx context.Context) error {
	s.with, s.without = nil, nil
	before := s.versions
	if err := s.prepare(ctx); err != nil {
		return err
	}
	p, err := s.startScorer(ctx, false, s.Name)
	if err != nil {
		return err
	}
	if _, err = p.until(s.Warm); err == nil {
		err = s.alternate(ctx, p)
	}
	if err == nil {
		_, err = p.result(sayDrained)
	}
	if err := errors.Join(err, p.stop()); err != nil {
		return err
	}
	if err := s.audit(ctx, p.out, before); err != nil {
		return err
	}
	return s.st.remove(ctx, p.out)
}

// prepare registers the versions that a round promotes.
func (s *swaps) prepare(ctx context.Context) error {
	for i := range s.Seconds {
		key := (s.next + i) % swapHot
		number := s.versions[key] + i/swapHot + 1
		tree, err := s.putVersion(ctx, key, number)
		if err != nil {
			return err
		}
		if err := s.say(ctx, s.version(key, number, tree).registered()); err != nil {
			return err
		}
	}
	return s.facts.Flush(ctx)
}

// alternate has windows with and without changes of champions take turns.
func (s *swaps) alternate(ctx context.Context, p *scorerProcess) error {
	left := s.Seconds
	for window := 0; left > 0; window++ {
		before, err := p.until(0)
		if err != nil {
			return err
		}
		began := time.Now()
		if window%2 == 1 {
			n := min(left, int(swapWindow/time.Second))
			left -= n
			err = s.promote(ctx, n)
		} else {
			err = rest(ctx, restWindow)
		}
		after, failed := p.until(0)
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		if s.dry = after >= s.Warm+s.Events; s.dry && window < 2 {
			return fmt.Errorf("the scorer has run dry after %d windows; give the scenario more events", window)
		} else if s.dry {
			return nil
		}
		rate := float64(after-before) / time.Since(began).Seconds()
		if window%2 == 1 {
			s.with = append(s.with, rate)
		} else {
			s.without = append(s.without, rate)
		}
	}
	return nil
}

// promote makes a newer version the champion n times, a second apart.
func (s *swaps) promote(ctx context.Context, n int) error {
	for range n {
		key := s.next % swapHot
		s.next++
		s.versions[key]++
		number := s.versions[key]
		tree, err := s.putVersion(ctx, key, number) // the version is in the store already; this returns its tree
		if err != nil {
			return err
		}
		s.promoted[key][number] = time.Now()
		if err := s.say(ctx, s.version(key, number, tree).proposed(tidemill.ActionPromote, number-1)); err != nil {
			return err
		}
		if err := rest(ctx, time.Second); err != nil {
			return err
		}
	}
	return nil
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// audit reads back a round's outputs. It notes when each version scored its first event, and checks
// that each version was the champion.
func (s *swaps) audit(ctx context.Context, stream string, before [swapHot]int) error {
	a, err := s.newAudit()
	if err != nil {
		return err
	}
	newest := before
	a.scored = func(e *broker.Incoming, number, key, version int) {
		if key >= swapHot {
			if version != 1 {
				s.by(fmt.Errorf("output %s is by version %d, and there is only the first", e.ID, version))
			}
			return
		}
		s.judge(e, key, version, &newest[key])
	}
	if err := a.read(ctx, stream); err != nil {
		return err
	}
	s.counts.outputs, s.counts.checked = s.counts.outputs+a.counts.outputs, s.counts.checked+a.counts.checked
	s.counts.lost, s.counts.twice, s.counts.wrong = s.counts.lost+a.counts.lost, s.counts.twice+a.counts.twice, s.counts.wrong+a.counts.wrong
	if s.blamed == nil {
		s.blamed = a.first
	}
	return s.collect(before)
}

// judge compares an output's version with the promotions. A key's events are on one partition, so
// its outputs are in order.
func (s *swaps) judge(e *broker.Incoming, key, version int, newest *int) {
	at, promoted := s.promoted[key][version]
	switch {
	case version < *newest:
		s.by(fmt.Errorf("output %s is by version %d of model %d, behind one by version %d", e.ID, version, key, *newest))
	case version > *newest && (!promoted || e.Time.Before(at.Truncate(time.Millisecond))):
		s.by(fmt.Errorf("output %s is by version %d of model %d, which was not the champion yet", e.ID, version, key))
	case version > *newest:
		s.first[key][version] = e.Time
	}
	*newest = max(*newest, version)
}

func (s *swaps) by(err error) {
	s.noChamp++
	if s.blamed == nil {
		s.blamed = err
	}
}

// collect notes the time from each promotion of the round to the version's first output.
func (s *swaps) collect(before [swapHot]int) error {
	for key, last := range s.versions {
		for version := before[key] + 1; version <= last; version++ {
			first, ok := s.first[key][version]
			if !ok && s.dry {
				continue // no events were left
			}
			if !ok {
				return fmt.Errorf("version %d of model %d was promoted and has scored nothing", version, key)
			}
			s.took = append(s.took, first.Sub(s.promoted[key][version]))
		}
	}
	return nil
}
