package local

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/internal/runs/agent"
	"tidemill.dev/internal/runs/scheduler"
)

// Options say where and with what.
type Options struct {
	Gateway string // URL; agents of this process speak to it too
	HTTP    *http.Client
	Dir     string   // for work folders, the cache and what the guard needs; of one launcher at a time
	Secrets string   // a folder: NAME/KEY is a file
	Guard   []string // the command that calls Guard; this program with the argument guard if empty
	Logger  *slog.Logger
}

// Launcher runs attempts as children of this process.
type Launcher struct {
	o       Options
	node    string
	cookie  string
	guard   *guardian
	cards   *cards
	engine  engine
	folders folderDigests
	escaped *sweeper

	mu     sync.Mutex
	live   map[string]*launched
	closed bool
	all    sync.WaitGroup
}

// launched is an attempt that is under way.
type launched struct {
	end  context.CancelCauseFunc
	done chan struct{}
}

var _ scheduler.Launcher = (*Launcher)(nil)

// Open looks for GPUs, ends what a killed predecessor left behind, and starts
// the guard.
func Open(ctx context.Context, o Options) (_ *Launcher, err error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.HTTP == nil {
		o.HTTP = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * runtime.NumCPU(), IdleConnTimeout: time.Minute}}
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, fmt.Errorf("open the launcher: %w", err)
	}
	l := &Launcher{o: o, cookie: rand.Text(), live: map[string]*launched{}}
	if err := l.prepare(ctx); err != nil {
		return nil, fmt.Errorf("open the launcher in %s: %w", o.Dir, err)
	}
	return l, nil
}

func (l *Launcher) prepare(ctx context.Context) (err error) {
	if err := os.MkdirAll(l.o.Dir, 0o700); err != nil {
		return err
	}
	if err := succeed(ctx, l.o.Dir); err != nil {
		return err
	}
	if err := (legacy{Cookie: l.cookie}).leave(l.o.Dir); err != nil {
		return err
	}
	if l.node, err = os.Hostname(); err != nil {
		return err
	}
	if l.cards, err = lookForCards(ctx); err != nil {
		l.o.Logger.Warn("GPUs are there and cannot be used", "reason", err)
		l.cards = newCards(nil)
	}
	if l.guard, err = startGuard(l.o.Guard, l.cookie); err != nil {
		return err
	}
	l.escaped = newSweeper(l.cookie, l.isLive)
	return nil
}

// Launch starts an attempt. One that is under way is a success.
func (l *Launcher) Launch(_ context.Context, a scheduler.Attempt) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errors.New("start an attempt: this process stops")
	}
	if l.live[a.Name] != nil {
		return nil
	}
	ctx, end := context.WithCancelCause(context.Background())
	one := &launched{end: end, done: make(chan struct{})}
	l.live[a.Name] = one
	l.all.Go(func() { l.attempt(ctx, a, one) })
	return nil
}

// attempt does one, to its end.
func (l *Launcher) attempt(ctx context.Context, a scheduler.Attempt, one *launched) {
	defer close(one.done)
	defer one.end(nil)
	err := l.together(ctx, a)
	l.mu.Lock()
	delete(l.live, a.Name)
	l.mu.Unlock()
	l.escaped.soon()
	if err != nil && !errors.Is(err, agent.ErrSuperseded) {
		l.o.Logger.Warn("local: reporting the end of an attempt failed", "run", a.Run, "recipe", a.Recipe, "key", a.Key, "reason", err)
	}
}

// options are those of an agent. Its gear is to be released behind it.
func (l *Launcher) options(a scheduler.Attempt, g *gear) agent.Options {
	return agent.Options{Gateway: l.o.Gateway, Token: a.Token, Attempt: a.Name, Node: l.node,
		Work: filepath.Join(l.o.Dir, workName, a.Name), Cache: filepath.Join(l.o.Dir, "cache"), HTTP: l.o.HTTP,
		Equip: g.equip, Prepare: prepareChild, Started: l.guard.add, Ended: l.guard.remove, Logger: l.o.Logger}
}

const workName = "work"

func (l *Launcher) find(name string) *launched {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.live[name]
}

// isLive reports whether the processes of a run's attempt may be.
func (l *Launcher) isLive(run string, attempt int) bool {
	return l.find(tidemill.AttemptName(run, attempt)) != nil
}

// Has reports whether an attempt is at work.
func (l *Launcher) Has(_ context.Context, name string) (bool, error) {
	return l.find(name) != nil, nil
}

// Stop ends one, and waits for that.
func (l *Launcher) Stop(ctx context.Context, name string) error {
	one := l.find(name)
	if one == nil {
		return nil
	}
	one.end(agent.ErrSuperseded)
	select {
	case <-one.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end attempt %s: %w", name, context.Cause(ctx))
	}
}

// Slots is how many attempts a pool takes here.
func (l *Launcher) Slots(p config.Pool) int {
	if p.Slots == 0 {
		return runtime.NumCPU()
	}
	return p.Slots
}

// GPUs is how many the machine has.
func (l *Launcher) GPUs() int { return len(l.cards.all) }

const (
	closeWithin = 10 * time.Second // where the context does not say
	guardNeeds  = time.Second
)

// Close asks the commands to save and leave, waits, and ends those that do not.
// Their attempts are told to be lost, so that the next start goes on with them.
func (l *Launcher) Close(ctx context.Context) error {
	by, ok := ctx.Deadline()
	if !ok {
		by = time.Now().Add(closeWithin)
	}
	left := time.Until(by)
	by = by.Add(-min(guardNeeds, left/4))
	l.mu.Lock()
	l.closed = true
	for _, one := range l.live {
		one.end(&agent.Stopping{By: by})
	}
	l.mu.Unlock()
	err := l.wait(ctx)
	l.escaped.close()
	return errors.Join(err, l.guard.close(ctx), os.RemoveAll(filepath.Join(l.o.Dir, workName)))
}

// wait waits for the agents. None stays longer than it was told, unless its
// command is one that even the kernel cannot end.
func (l *Launcher) wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.all.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the attempts to end: %w", context.Cause(ctx))
	}
}

// ours is how our own program is called with an argument.
func ours(argument string) ([]string, error) {
	self, err := os.Executable()
	return []string{self, argument}, err
}

// quietly is a command that says nothing.
func quietly(ctx context.Context, name string, args ...string) error {
	return exec.CommandContext(ctx, name, args...).Run()
}

// together does an attempt with all that work on it, each of them an agent with
// a child of its own, that meet at ports of this machine. The first worker's
// error is the attempt's.
func (l *Launcher) together(ctx context.Context, a scheduler.Attempt) error {
	workers, servers := max(1, a.Plan.Workers), 0
	if a.Plan.Servers != nil {
		servers = a.Plan.Servers.Count
	}
	d := &deal{cards: l.cards, workers: workers, dealt: make(chan struct{})}
	defer d.release()
	if workers+servers == 1 {
		return agent.Run(ctx, l.options(a, &gear{l: l, deal: d}))
	}
	at, err := agent.Places(workers + servers)
	if err != nil {
		return err
	}
	errs := make([]error, workers+servers)
	var all sync.WaitGroup
	for i := range errs {
		o := l.options(a, &gear{l: l, deal: d, index: i, none: i >= workers})
		o.Workers, o.Servers, o.Part, o.Index = at[:workers], at[workers:], agent.Worker, i
		if i >= workers {
			o.Part, o.Index = agent.Server, i-workers
		}
		if i > 0 {
			o.Work += fmt.Sprintf("-%s%d", o.Part, o.Index)
		}
		all.Go(func() { errs[i] = agent.Run(ctx, o) })
	}
	all.Wait()
	if errs[0] == nil {
		return errors.Join(errs[1:]...)
	}
	return errs[0]
}

// deal takes the cards of an attempt and hands each worker its own. All are taken
// at once: of two attempts that each had half of what they need, both would wait
// for ever.
type deal struct {
	cards   *cards
	workers int

	dealt chan struct{} // closed when it has been
	all   []card
	err   error
}

// take is a worker's share. The first worker takes for all.
func (d *deal) take(ctx context.Context, index, each int) ([]card, error) {
	if index == 0 {
		d.all, d.err = d.cards.take(ctx, each*d.workers)
		close(d.dealt)
	}
	select {
	case <-d.dealt:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for GPUs: %w", context.Cause(ctx))
	}
	if d.err != nil {
		return nil, d.err
	}
	return d.all[index*each : (index+1)*each], nil
}

// release gives back what was taken, when all have ended.
func (d *deal) release() { d.cards.give(d.all) }
