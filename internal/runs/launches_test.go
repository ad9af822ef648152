package runs

import (
	"context"
	"slices"
	"sync"

	"tidemill.dev/config"
)

// launches is a launcher that notes what it is told. Its attempts are at work
// until they are ended.
type launches struct {
	mu      sync.Mutex
	all     []Attempt
	at      map[string]bool // at work
	stopped []string
	fail    func(Attempt) error
	does    func(Attempt) // in a goroutine of its own; then it ends
	working sync.WaitGroup
}

func newLaunches(w *world) *launches {
	l := &launches{at: map[string]bool{}}
	w.Cleanup(l.working.Wait)
	return l
}

// Launch is of Launcher.
func (l *launches) Launch(_ context.Context, a Attempt) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		if err := l.fail(a); err != nil {
			return err
		}
	}
	l.all = append(l.all, a)
	l.at[a.Name] = true
	if does := l.does; does != nil {
		l.working.Go(func() {
			does(a)
			l.end(a.Name)
		})
	}
	return nil
}

// Has is of Launcher.
func (l *launches) Has(_ context.Context, name string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at[name], nil
}

// Stop is of Launcher.
func (l *launches) Stop(_ context.Context, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = append(l.stopped, name)
	delete(l.at, name)
	return nil
}

// Slots is of Launcher.
func (l *launches) Slots(p config.Pool) int { return p.Slots }

func (l *launches) end(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.at, name)
}

func (l *launches) launched() []Attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

func (l *launches) wasStopped(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.stopped, name)
}

func (l *launches) of(run string) (all []Attempt) {
	for _, a := range l.launched() {
		if a.Run == run {
			all = append(all, a)
		}
	}
	return all
}
