package repeats

import (
	"fmt"
	"runtime"
	"time"
)

// While Redis is away it is tried after the first of these, then after twice as
// long each time.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
)

// run makes the round trips, one after the other.
func (m *Memory) run() {
	defer close(m.ended)
	for m.due() {
		stops := m.gather()
		m.left = time.Now()
		if err := m.travel(stops); err != nil {
			m.sendHome(stops, err)
			continue
		}
		m.arrive(stops)
	}
	m.forget()
}

// due waits until there is something to do: work or, while Redis is away, the
// next try. It is false when Memory is closed and nothing can be done any more.
func (m *Memory) due() bool {
	m.mu.Lock()
	away := m.away
	m.mu.Unlock()
	if away {
		return m.pause()
	}
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		// Whoever can run now may have something to say: under load a trip then
		// carries more, and alone there is nobody to wait for.
		runtime.Gosched()
		now := time.Now()
		rest := m.left.Add(m.stale / 2).Sub(now)
		m.mu.Lock()
		work, closed := len(m.busy) > 0, m.closed
		ready := work && (m.urgent || rest <= 0)
		m.asleep = !ready && !closed
		m.mu.Unlock()
		if ready || closed {
			return work
		}
		if work {
			t.Reset(rest)
		}
		m.sleep(t)
	}
}

// sleep waits for news, or for the timer. Whatever woke it, nothing is left in
// wake afterwards.
func (m *Memory) sleep(t *time.Timer) {
	select {
	case <-m.wake:
		return
	case <-m.closing:
	case <-t.C:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.asleep {
		<-m.wake
	}
	m.asleep = false
}

// pause waits until Redis is worth a try. A closed Memory has one try, at once.
func (m *Memory) pause() bool {
	select {
	case <-m.closing:
		return false
	default:
	}
	t := time.NewTimer(min(lastPause, firstPause<<min(m.failures-1, 10)))
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.closing:
	}
	return true
}

// arrive lets those go on who waited for a trip. A ping proves less than work
// does, so after it the pauses go on growing if work fails all the same.
func (m *Memory) arrive(stops []stop) {
	m.mu.Lock()
	for _, s := range stops {
		s.shelf.marks.done(s.marks)
		if s.unread {
			m.list(s.shelf, true)
			continue
		}
		s.shelf.fresh = m.left
	}
	was := m.away
	m.away = false
	m.mu.Unlock()
	release(stops)
	if len(stops) > 0 {
		m.failures = 0
	}
	if was {
		m.metrics.away.Set(0)
		m.log.Info("redis is back: repeats of what other gateways stored are recognised again")
	}
}

// sendHome opens the circuit: who is on the trip, and who waits for the next,
// goes with what is known here, and the marks stay for another try. What was
// read may have been forgotten when Redis is back, so that it is read again.
func (m *Memory) sendHome(stops []stop, err error) {
	m.failures++
	m.mu.Lock()
	dropped, unchecked := 0, 0
	for _, s := range stops {
		dropped += s.shelf.marks.restore(s.marks)
		m.list(s.shelf, false)
	}
	for _, s := range m.shelves {
		s.after, s.fresh = "0", time.Time{}
		unchecked += s.dismiss()
	}
	m.urgent = false
	was := m.away
	m.away = true
	m.mu.Unlock()
	unchecked += release(stops)
	m.metrics.dropped.Add(float64(dropped))
	m.metrics.unchecked.Add(float64(unchecked))
	if !was {
		m.metrics.away.Set(1)
		m.log.Warn("redis is away: repeats of what other gateways stored are stored until it is back", "reason", err)
	}
}

// release lets those go on who wait for a trip. It wakes them outside the lock,
// which they want next.
func release(stops []stop) (questions int) {
	for _, s := range stops {
		if s.page != nil {
			questions += s.page.waiting
			close(s.page.done)
		}
	}
	return questions
}

// forget counts the marks that a closed Memory could not write.
func (m *Memory) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := 0
	for _, s := range m.busy {
		left += len(s.marks.waiting)
		m.metrics.unchecked.Add(float64(s.dismiss()))
	}
	if left > 0 {
		m.metrics.dropped.Add(float64(left))
		m.log.Warn(fmt.Sprintf("redis is away: other gateways will not recognise %d events if they are repeated", left))
	}
}
