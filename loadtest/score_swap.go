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

// swapBench measures a scorer at full load while one champion per second changes.
type swapBench struct {
	*scoreBench
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

func (w *scoreBench) measureSwaps(ctx context.Context, o *scoreOutcome) error {
	if err := w.fillStream(ctx, w.Warm+w.Events); err != nil {
		return err
	}
	s := &swapBench{scoreBench: w}
	for i := range s.versions {
		s.versions[i], s.promoted[i], s.first[i] = 1, map[int]time.Time{}, map[int]time.Time{}
	}
	var ratios []float64
	for range w.scorePlan.rounds {
		if err := s.runRound(ctx); err != nil {
			return err
		}
		ratios = append(ratios, spreadOf(s.with).median/spreadOf(s.without).median)
		o.Notes = append(o.Notes, fmt.Sprintf("%.0f events/s while champions change, %.0f while they do not", spreadOf(s.with).median, spreadOf(s.without).median))
	}
	s.took.sorted()
	o.Figures["swaps / no swaps"] = spreadOf(ratios).median
	o.Figures["promotion to first event p99"] = milliseconds(s.took.quantile(0.99))
	o.Figures["promotion to first event p50"] = milliseconds(s.took.quantile(0.5))
	s.counts.addCounts(o, s.blamed)
	o.Figures[figureNoChampion] = float64(s.noChamp)
	o.Notes = append(o.Notes, fmt.Sprintf("%d promotions, of the %d models with most events; until the first event of each: p50 %s, longest %s",
		len(s.took), swapHot, micros(s.took.quantile(0.5)), micros(s.took.quantile(1))))
	return nil
}

// runRound runs one scorer on the stream.
func (s *swapBench) runRound(ctx context.Context) error {
	s.with, s.without = nil, nil
	before := s.versions
	if err := s.prepare(ctx); err != nil {
		return err
	}
	p, err := s.startScorer(ctx, false, s.Name)
	if err != nil {
		return err
	}
	if _, err = p.waitScored(s.Warm); err == nil {
		err = s.runWindows(ctx, p)
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
func (s *swapBench) prepare(ctx context.Context) error {
	for i := range s.Seconds {
		key := (s.next + i) % swapHot
		number := s.versions[key] + i/swapHot + 1
		tree, err := s.putVersion(ctx, key, number)
		if err != nil {
			return err
		}
		if err := s.writeFacts(ctx, s.version(key, number, tree).registered()); err != nil {
			return err
		}
	}
	return s.facts.Flush(ctx)
}

// runWindows alternates windows with and without changes of champions.
func (s *swapBench) runWindows(ctx context.Context, p *scorerProcess) error {
	left := s.Seconds
	for window := 0; left > 0; window++ {
		before, err := p.waitScored(0)
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
		after, failed := p.waitScored(0)
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
func (s *swapBench) promote(ctx context.Context, n int) error {
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
		if err := s.writeFacts(ctx, s.version(key, number, tree).proposed(tidemill.ActionPromote, number-1)); err != nil {
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
func (s *swapBench) audit(ctx context.Context, stream string, before [swapHot]int) error {
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
		s.checkVersion(e, key, version, &newest[key])
	}
	if err := a.checkStream(ctx, stream); err != nil {
		return err
	}
	s.counts.outputs, s.counts.checked = s.counts.outputs+a.counts.outputs, s.counts.checked+a.counts.checked
	s.counts.lost, s.counts.twice, s.counts.wrong = s.counts.lost+a.counts.lost, s.counts.twice+a.counts.twice, s.counts.wrong+a.counts.wrong
	if s.blamed == nil {
		s.blamed = a.first
	}
	return s.collectDelays(before)
}

// checkVersion compares an output's version with the promotions. A key's events are on one
// partition, so its outputs are in order.
func (s *swapBench) checkVersion(e *broker.Incoming, key, version int, newest *int) {
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

func (s *swapBench) by(err error) {
	s.noChamp++
	if s.blamed == nil {
		s.blamed = err
	}
}

// collectDelays notes the time from each promotion of the round to the version's first output.
func (s *swapBench) collectDelays(before [swapHot]int) error {
	for key, last := range s.versions {
		for version := before[key] + 1; version <= last; version++ {
			first, ok := s.first[key][version]
			if !ok && s.dry {
				continue // no events were left for this version
			}
			if !ok {
				return fmt.Errorf("version %d of model %d was promoted and has scored nothing", version, key)
			}
			s.took = append(s.took, first.Sub(s.promoted[key][version]))
		}
	}
	return nil
}
