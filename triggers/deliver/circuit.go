package deliver

import (
	"fmt"
	"net/http"
	"time"

	"tidemill.dev/config"
)

// A trigger's circuit opens after many attempts in a row that did not reach its subscriber.
// While the circuit is open, the trigger's events are parked without an attempt, and they lose
// none of their attempts. From time to time one parked event is tried: the probe. A probe is an
// attempt of that event, so the event becomes a dead letter when its attempts are used up. The
// first answer closes the circuit.
//
// A subscriber that answers with an error such as 500 is reachable. Its error may
// concern one event only, so it does not open the circuit: events of other keys must not wait.

// circuit is the state of a trigger's circuit. The sender's lock guards it.
type circuit struct {
	failures int // attempts since the last answer
	open     bool
	since    time.Time // time when it opened
	probes   int       // probes since it opened
	next     time.Time // time of the next probe
	timer    *time.Timer
}

const (
	// leastFailures is the least number of attempts in a row that open a circuit. If a trigger
	// sends more events at once, twice as many have to fail, because one cut connection can end
	// all attempts under way.
	leastFailures = 10
	// longestProbe bounds the time between two probes. It follows the trigger's backoff.
	longestProbe = 30 * time.Second
)

// unreached reports whether an attempt did not reach the subscriber's code: there was no answer,
// or a proxy or the subscriber itself said that it serves nothing for now.
func (o *attemptResult) unreached() bool {
	if o.kind != again {
		return false
	}
	switch o.attempt.Status {
	case 0, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// answered notes an answer. It reports whether the circuit has closed.
func (c *circuit) answered() bool {
	closes := c.open
	c.failures, c.probes, c.open = 0, 0, false
	return closes
}

// failed notes an attempt that did not reach the subscriber. It reports whether the circuit has
// opened. Attempts that were under way when it opened change nothing.
func (c *circuit) failed(d *config.Delivery, probe bool, after time.Duration, now time.Time) bool {
	c.failures++
	opens := !c.open && c.failures >= max(leastFailures, 2*d.Concurrency)
	switch {
	case opens:
		c.open, c.since, c.probes = true, now, 1
	case c.open && probe:
		c.probes++
	default:
		return false
	}
	c.next = now.Add(min(delay(d.Backoff, c.probes, random(), after), longestProbe))
	return opens
}

// mayProbe reports whether a probe may be sent now. The next one may not be sent before
// this one has failed. If its outcome never comes, because its partition was lost, another probe
// is sent a little later.
func (c *circuit) mayProbe(d *config.Delivery, now time.Time) bool {
	if now.Before(c.next) {
		return false
	}
	c.next = now.Add(d.Timeout + longestProbe)
	return true
}

// judge notes the outcome of an attempt for the circuit of its trigger. It returns true if the
// circuit has opened or closed.
func (s *sender) judge(i *item, o *attemptResult) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !o.unreached() {
		changed = s.circuit.answered()
	} else {
		changed = s.circuit.failed(&s.to.Load().trigger.Delivery, i.probe, o.after, time.Now())
	}
	s.awaitProbe()
	return changed
}

// reserveProbe reports whether a pipeline may load one event as the probe. Otherwise the pipeline is
// notified when a probe is due.
func (s *sender) reserveProbe(l *pipeline) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.circuit.open {
		return false // the partitions learn it soon
	}
	if s.circuit.mayProbe(&s.to.Load().trigger.Delivery, time.Now()) {
		s.reserved++
		return true
	}
	s.hungry[l] = struct{}{}
	s.awaitProbe()
	return false
}

// skipProbe allows the next probe after a pause, because no attempt was made of the event that was to be
// the probe.
func (s *sender) skipProbe(pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.circuit.next = time.Now().Add(pause)
	s.awaitProbe()
}

// awaitProbe notifies the pipelines when the next probe is due. Called with the lock held.
func (s *sender) awaitProbe() {
	s.circuit.stopTimer()
	if !s.circuit.open || s.ended {
		s.feed()
		return
	}
	s.circuit.timer = time.AfterFunc(time.Until(s.circuit.next), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.notifyHungry()
	})
}

func (c *circuit) stopTimer() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// isOpen reports whether the trigger's circuit is open.
func (s *sender) isOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.circuit.open
}

// whyOpen returns the reason why the trigger's events are not tried; empty if they are.
func (s *sender) whyOpen() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.circuit.open {
		return ""
	}
	last, _ := s.lastError()
	return fmt.Sprintf("its subscriber cannot be reached since %s; one event at a time is tried until it answers; last error: %s", s.circuit.since.UTC().Format(time.RFC3339), last)
}

// judge notes the outcome of an attempt for the trigger's circuit. If the circuit opens or closes, the
// partitions learn it from retryMissing.
func (d *Dispatcher) judge(s *sender, i *item, o *attemptResult) {
	if !s.judge(i, o) {
		return
	}
	if why := s.whyOpen(); why != "" {
		d.o.Logger.Warn("dispatcher: a subscriber cannot be reached; its trigger's events are parked", "trigger", s.name, "reason", o.attempt.Error)
	} else {
		d.o.Logger.Info("dispatcher: a subscriber answers again; its trigger's events are delivered", "trigger", s.name)
	}
	notify(d.missing.changed)
}
