package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// attempt is one under way.
type attempt struct {
	o     Options
	door  *door
	ends  *ends
	dirs  folders
	order api.Order
	gear  Equipment

	log         *logbook
	checkpoints checkpoints
	party       party
	clock       clock
	ooms        ooms // of the container, when the command began

	where   tidemill.Where
	stages  []tidemill.Stage
	telling atomic.Bool      // of the end
	told    tidemill.Outcome // of the end; empty until then
	ending  *ending          // nil until the command has ended
	peak    int64
	seconds float64 // of the command
	metrics map[string]float64
	made    []api.File // by it, and the gateway has it
}

// Run does one attempt. Its error says that the attempt could not tell of its
// end; how the command went is in what it told.
func Run(ctx context.Context, o Options) error {
	_, err := do(ctx, o)
	return err
}

// do does one attempt, and says what it has told of its end.
func do(ctx context.Context, o Options) (tidemill.Outcome, error) {
	a := &attempt{o: o.withDefaults(), ends: newEnds(ctx), dirs: folders{o.Work}}
	a.party = newParty(&a.o)
	defer a.ends.close()
	a.door = newDoor(&a.o, func() { a.ends.die(ErrSuperseded) })
	a.where.Node = o.Node
	err := a.begin()
	stop := a.beat()
	defer stop()
	if err == nil {
		err = a.work()
	}
	err = a.report(err)
	if !a.party.first() && errors.Is(err, ErrSuperseded) {
		err = nil // so do those end that are not the first: it has told of the end
	}
	return a.told, errors.Join(err, a.tidy())
}

// begin gets the order and the folders.
func (a *attempt) begin() error {
	a.log = newLogbook(a.ends.save, a.door, 0, a.o.Now)
	a.log.part = a.party.name()
	if err := a.door.insist(a.ends.work, said{}, into(&a.order)); err != nil {
		return fmt.Errorf("ask what to do: %w", err)
	}
	a.log.most = a.order.Plan.MaxLog
	if err := a.dirs.make(); err != nil {
		return fmt.Errorf("make the folders of the attempt: %w", err)
	}
	return nil
}

// tidy removes the attempt's folders.
func (a *attempt) tidy() error {
	if err := a.dirs.remove(); err != nil {
		return fmt.Errorf("remove the folders of the attempt: %w", err)
	}
	return nil
}

// work does everything between the order and the last word.
func (a *attempt) work() error {
	if err := a.equip(); err != nil {
		return err
	}
	a.clock = newClock(a.order.Plan.Deadline, a.ends.end)
	a.clock.run()
	defer a.clock.rest()
	if err := a.stage("fetch", func() error { return a.fetch(a.ends.work) }); err != nil {
		return err
	}
	if err := a.gather(); err != nil {
		return err
	}
	err := a.stage("run", a.run)
	a.clock.rest()
	if !a.party.first() {
		return err // what it made is the first worker's to bring
	}
	if a.ending != nil && a.ends.early() == nil {
		a.disperse()
	}
	if err != nil {
		return err
	}
	return a.bring()
}

// clock ends what takes too long. The command and what is fetched for it have a
// deadline together, and then what is brought away has as much again.
type clock struct {
	whole, left time.Duration
	end         context.CancelCauseFunc
	timer       *time.Timer
	from        time.Time
}

func newClock(d time.Duration, end context.CancelCauseFunc) clock {
	if d <= 0 {
		d = 1 << 62
	}
	return clock{whole: d, left: d, end: end}
}

// run has the clock run.
func (c *clock) run() {
	c.from = time.Now()
	c.timer = time.AfterFunc(c.left, func() { c.end(&late{c.whole}) })
}

// rest has it stand still, until it runs again.
func (c *clock) rest() {
	if c.timer != nil {
		c.timer.Stop()
		c.left -= time.Since(c.from)
		c.timer = nil
	}
}

// equip waits for what the machine gives.
func (a *attempt) equip() (err error) {
	a.gear, err = a.o.Equip(a.ends.work, a.order.Plan)
	if err != nil {
		return &fault{permanent: !errors.Is(err, ErrPassing), err: err}
	}
	a.where.Card, a.where.GPUs, a.where.Image = a.gear.Card, a.gear.GPUs, a.gear.Image
	a.where.Driver = a.gear.Driver
	return nil
}

// bring checks what the command has made, and uploads it. A machine that stops
// is not a reason to lose it at once; a person's word is.
func (a *attempt) bring() error {
	if err := a.complete(); err != nil {
		return err
	}
	if err := a.measured(); err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(a.ends.save)
	defer end(nil)
	c := newClock(a.order.Plan.Deadline, end)
	c.run()
	defer c.rest()
	defer context.AfterFunc(a.ends.work, func() {
		if errors.As(a.ends.early(), new(*cancelled)) {
			end(a.ends.early())
		}
	})()
	err := a.stage("upload", func() error { return a.upload(ctx) })
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// folders are where an attempt works. To make one costs more than all else that
// a trivial run needs of the file system, so none is made that is not needed.
type folders struct{ work string }

func (f folders) in() string         { return filepath.Join(f.work, "in") }
func (f folders) out() string        { return filepath.Join(f.work, "out") }
func (f folders) checkpoint() string { return filepath.Join(f.work, "checkpoint") }
func (f folders) champion() string   { return filepath.Join(f.work, "champion") }
func (f folders) event() string      { return filepath.Join(f.work, "event.json") }
func (f folders) events() string     { return filepath.Join(f.work, "events.ndjson") }

// make makes them, that of the champion not among them. What lies there is of an
// attempt that was killed, and whose name this one has again.
func (f folders) make() error {
	if err := f.remove(); err != nil {
		return err
	}
	err := os.Mkdir(f.work, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(f.work, 0o700)
	}
	for _, dir := range []string{f.in(), f.out(), f.checkpoint()} {
		if err == nil {
			err = os.Mkdir(dir, 0o755)
		}
	}
	return err
}

// remove takes all of it away. Where a folder may not be written to, it is made
// so first.
func (f folders) remove() error {
	for _, dir := range []string{f.in(), f.checkpoint()} {
		_ = os.Remove(dir) // most often it is empty, and this is the shortest way
	}
	err := os.RemoveAll(f.work)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(f.work, func(name string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(name, 0o700) // what it leaves is told of by the second try
		}
		return nil
	})
	return os.RemoveAll(f.work)
}

// lock takes the right to write from files that were laid down, and from their
// folders.
func lock(root string, files []api.File) error {
	folders := map[string]bool{root: true}
	for i := range files {
		at := filepath.Join(root, filepath.FromSlash(files[i].Path))
		mode := fs.FileMode(0o444)
		if files[i].Executable {
			mode = 0o555
		}
		if err := os.Chmod(at, mode); err != nil {
			return err
		}
		for dir := filepath.Dir(at); !folders[dir]; dir = filepath.Dir(dir) {
			folders[dir] = true
		}
	}
	for dir := range folders {
		if err := os.Chmod(dir, 0o555); err != nil {
			return err
		}
	}
	return nil
}
