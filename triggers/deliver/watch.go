package deliver

import (
	"sync"
	"time"
)

// watch tells the time that everything here waits by. It never goes back: when
// the system's clock is set back, what waits for a moment would wait for as much
// longer, and what must be parked by then would hold up its partition. It runs
// ahead instead, until the clock has caught up. Set forward, it follows at once, as
// after a machine's sleep.
type watch struct {
	mu    sync.Mutex
	last  time.Time
	ahead time.Duration // of the system's clock
}

func (w *watch) now() moment {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.last.IsZero() {
		w.last = now
	}
	passed, moved := now.Sub(w.last), now.Round(0).Sub(w.last.Round(0))
	w.last = now
	return w.read(now, passed, moved)
}

// read is the time when the clock shows now: since it was read last so much has
// passed, and by so much it has moved.
func (w *watch) read(now time.Time, passed, moved time.Duration) moment {
	w.ahead = max(w.ahead+passed-moved, 0)
	return momentOf(now.Add(w.ahead))
}
