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

// Options configure a Launcher.
type Options struct {
	Gateway string // URL; the agents in this process use it too
	HTTP    *http.Client
	Dir     string // work folders, the cache and the guard's record; used by one launcher at a time
	Secrets string // folder with a file NAME/KEY for each secret
	// Seen records that an attempt waits for GPUs, and the end of the wait. Nil records nothing.
	Seen   func(ctx context.Context, a scheduler.Attempt, d tidemill.RunSeen) error
	Guard  []string // command that calls Guard; if empty, this program with the argument guard
	Logger *slog.Logger
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

// launched is a running attempt.
type launched struct {
	end  context.CancelCauseFunc
	done chan struct{}
}

var _ scheduler.Launcher = (*Launcher)(nil)

// Open looks for GPUs, ends the remaining processes of a killed predecessor, and starts the guard.
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
	if err := cleanUpPredecessor(ctx, l.o.Dir); err != nil {
		return err
	}
	if err := (launcherRecord{Cookie: l.cookie}).leave(l.o.Dir); err != nil {
		return err
	}
	if l.node, err = os.Hostname(); err != nil {
		return err
	}
	if l.cards = lookForCards(ctx); l.cards.fault != nil {
		l.o.Logger.Warn("local: listing the GPUs of this machine failed; each run that needs one tries again", "reason", l.cards.fault)
	}
	if l.guard, err = startGuard(l.o.Guard, l.cookie); err != nil {
		return err
	}
	l.escaped = newSweeper(l.cookie, l.isLive)
	return nil
}

// Launch starts an attempt. It does nothing if the attempt runs already.
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

// attempt runs an attempt to its end.
func (l *Launcher) attempt(ctx context.Context, a scheduler.Attempt, one *launched) {
	defer close(one.done)
	defer one.end(nil)
	err := l.runTogether(ctx, a)
	l.mu.Lock()
	delete(l.live, a.Name)
	l.mu.Unlock()
	l.escaped.soon()
	if err != nil && !errors.Is(err, agent.ErrSuperseded) {
		l.o.Logger.Warn("local: reporting the end of an attempt failed", "run", a.Run, "recipe", a.Recipe, "key", a.Key, "reason", err)
	}
}

// options are the options of an agent.
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

// isLive reports whether an attempt is running, so that its processes must not be killed.
func (l *Launcher) isLive(run string, attempt int) bool {
	return l.find(tidemill.AttemptName(run, attempt)) != nil
}

// Has reports whether an attempt is running.
func (l *Launcher) Has(_ context.Context, name string) (bool, error) {
	return l.find(name) != nil, nil
}

// Stop ends an attempt and waits until it has ended.
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

// Slots returns how many attempts of a pool run at once on this machine.
func (l *Launcher) Slots(p config.Pool) int {
	if p.Slots == 0 {
		return runtime.NumCPU()
	}
	return p.Slots
}

// GPUs returns the number of GPUs of the machine.
func (l *Launcher) GPUs() int { return l.cards.count() }

const (
	closeWithin = 10 * time.Second // time to close if the context has no deadline
	guardNeeds  = time.Second
)

// Close asks the commands to save a checkpoint and exit, waits, and ends the commands that have not
// exited. Close reports their attempts as left, so that the runs continue after the next start.
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
	err := l.waitAgents(ctx)
	l.escaped.close()
	return errors.Join(err, l.guard.close(ctx), agent.RemoveFolder(filepath.Join(l.o.Dir, workName)))
}

// waitAgents waits for the agents. Each agent ends before its deadline, unless even the kernel
// cannot kill its command.
func (l *Launcher) waitAgents(ctx context.Context) error {
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

// ownCommand returns the command that calls our own program with an argument.
func ownCommand(argument string) ([]string, error) {
	self, err := os.Executable()
	return []string{self, argument}, err
}

// runQuiet runs a command and discards its output.
func runQuiet(ctx context.Context, name string, args ...string) error {
	return exec.CommandContext(ctx, name, args...).Run()
}

// runTogether runs an attempt with all its workers and servers. Each worker or server is an agent
// with its own child. The commands connect to each other through ports of this machine. The first
// worker's error is returned, else the errors of the others.
func (l *Launcher) runTogether(ctx context.Context, a scheduler.Attempt) error {
	workers, servers := max(1, a.Plan.Workers), 0
	if a.Plan.Servers != nil {
		servers = a.Plan.Servers.Count
	}
	d := &cardShares{cards: l.cards, workers: workers, dealt: make(chan struct{}), waits: func(why string) { l.tellWait(ctx, a, why) }}
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

// tellWait records why an attempt does not run yet. The attempt continues without the record, because
// it is only for people.
func (l *Launcher) tellWait(ctx context.Context, a scheduler.Attempt, why string) {
	if l.o.Seen == nil {
		return
	}
	if err := l.o.Seen(ctx, a, tidemill.RunSeen{Pending: why}); err != nil && ctx.Err() == nil {
		l.o.Logger.Warn("local: recording that an attempt waits for GPUs failed; lists show it as running", "run", a.Run, "recipe", a.Recipe, "key", a.Key, "reason", err)
	}
}

// cardShares takes the cards of an attempt and gives each worker its share. All cards are taken at
// once: if two attempts each had only half of their cards, both would wait for ever.
type cardShares struct {
	cards   *cards
	workers int
	waits   func(why string)

	dealt chan struct{} // closed once all and err are set
	all   []card
	err   error
}

// takeShare returns a worker's share. The first worker takes the cards for all workers.
func (d *cardShares) takeShare(ctx context.Context, index, each int) ([]card, error) {
	if index == 0 {
		d.all, d.err = d.cards.acquire(ctx, each*d.workers, d.waits)
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

// release returns the cards after all workers have ended.
func (d *cardShares) release() { d.cards.giveBack(d.all) }
