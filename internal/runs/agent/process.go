package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"
)

const defaultGrace = 30 * time.Second

// run runs the command, and saves what it tells meanwhile.
func (a *attempt) run() error {
	if err := a.ends.early(); err != nil {
		return err
	}
	cmd, kill, err := a.command()
	if err != nil {
		return err
	}
	a.o.Prepare(cmd)
	a.checkpoints = checkpoints{dir: a.dirs.checkpoint(), save: a.saveCheckpoint, note: a.log.note}
	a.checkpoints.begin() // before the command can change them
	if a.o.Inside {
		a.ooms = readOOMs(a.o.Cgroup)
	}
	c, err := start(cmd, a.log, kill, a.o.Echo)
	if err != nil {
		return unstarted(&a.order.Plan, err)
	}
	a.o.Started(cmd.Process.Pid)
	from := time.Now()
	stop := a.watch(c)
	asked := a.await(c)
	a.o.Ended(cmd.Process.Pid)
	a.seconds = time.Since(from).Seconds()
	a.ends.over(a.order.Plan.Deadline)
	c.reads.Wait()
	stop()
	return a.ended(c, asked)
}

// ended notes how the command has ended. One that was asked to leave may well
// have left with a success, and yet not have done what it should.
func (a *attempt) ended(c *child, asked bool) error {
	end := endingOf(c.err, a.imageRun())
	a.ending = &end
	if !a.contained() {
		a.peak = c.peakMemory() // else it is the engine's client's
	}
	if a.o.Inside && end.err != nil && !asked {
		end.err = a.ooms.explain(end, readOOMs(a.o.Cgroup), a.order.Plan.Memory)
	}
	if asked {
		end.err = a.ends.early()
	}
	if end.err != nil && a.party.first() {
		a.checkpoints.finish(a.ends.save) // for the next attempt
	}
	return end.err
}

// watch follows the command's files while it runs. The result ends that, waits,
// and tells what has come last.
func (a *attempt) watch(c *child) (stop func()) {
	p := &progress{door: a.door, steps: steps{folder: a.dirs.out()}, attempt: a.order.Attempt, now: a.o.Now, log: a.log, measure: c.measure}
	ctx, cancel := context.WithCancel(a.ends.save)
	var all sync.WaitGroup
	if !a.party.first() {
		p.some, p.stopped = false, true // the first worker tells, and saves
		all.Go(func() { p.watch(ctx) })
		return func() { cancel(); all.Wait() }
	}
	all.Go(func() { p.watch(ctx) })
	all.Go(func() { a.checkpoints.watch(ctx) })
	return func() {
		cancel()
		all.Wait()
		p.finish(a.ends.save)
	}
}

// await waits for the command, and has it leave if the attempt ends before.
func (a *attempt) await(c *child) (asked bool) {
	select {
	case <-c.exited:
		return false
	case <-a.ends.work.Done():
	}
	if !a.ends.isDead() {
		askGroup(c.cmd.Process.Pid)
		a.grace(c)
	}
	killGroup(c.cmd.Process.Pid)
	<-c.exited
	return true
}

// grace is the time in which a command that was asked to leave may do so. A
// machine that stops gives no more of it than leaves time to save what the
// command has left behind.
func (a *attempt) grace(c *child) {
	d := a.order.Plan.Grace
	if d <= 0 {
		d = defaultGrace
	}
	if errors.Is(a.ends.early(), errOver) {
		d = min(d, leaveOthers)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c.exited:
	case <-t.C:
	case <-a.ends.leave.Done():
	}
}

const (
	drainFor   = 500 * time.Millisecond // of silence, behind the command's end
	drainBytes = 2 << 20                // more than a pipe holds
)

// child is the command, once it runs.
type child struct {
	cmd    *exec.Cmd
	log    *logbook
	exited chan struct{}
	err    error // of the wait; good once it has exited
	before int64 // the most memory that we had held when it began
	peak   atomic.Int64
	pipes  []*os.File
	reads  sync.WaitGroup
	kill   func() // ends what is not in its group, a container
	echo   func(stream string, data []byte)
}

// start runs a command in a group of its own, and reads what it says.
func start(cmd *exec.Cmd, log *logbook, kill func(), echo func(string, []byte)) (*child, error) {
	c := &child{cmd: cmd, log: log, exited: make(chan struct{}), before: ownPeak(), kill: kill, echo: echo}
	theirs, err := c.plug()
	if err == nil {
		ownGroup(cmd)
		err = cmd.Start()
	}
	for _, f := range theirs {
		_ = f.Close() // the child has its own
	}
	if err != nil {
		for _, f := range c.pipes {
			_ = f.Close() // nothing was read from it
		}
		return nil, err
	}
	for i, stream := range []string{stdout, stderr} {
		c.reads.Go(func() { c.read(stream, c.pipes[i]) })
	}
	go c.wait()
	return c, nil
}

// plug gives the command its ends of two pipes. They are files, so that the wait
// for the command is not one for all who have them.
func (c *child) plug() (theirs []*os.File, err error) {
	for _, to := range []*io.Writer{&c.cmd.Stdout, &c.cmd.Stderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return theirs, err
		}
		*to, theirs, c.pipes = w, append(theirs, w), append(c.pipes, r)
	}
	return theirs, nil
}

// wait ends what is left of the group when its first has ended. What has left
// the group may have the pipes still: they are drained, not waited for.
func (c *child) wait() {
	c.err = c.cmd.Wait()
	killGroup(c.cmd.Process.Pid)
	if c.err != nil {
		c.kill()
	}
	close(c.exited)
	for _, p := range c.pipes {
		_ = p.SetReadDeadline(time.Now().Add(drainFor)) // one that is closed is drained
	}
}

// read copies a pipe into the log, to its end, or to what there was when the
// command ended.
func (c *child) read(stream string, p *os.File) {
	defer p.Close()
	left := &drain{pipe: p, exited: c.exited, left: drainBytes}
	if err := c.log.follow(stream, left, c.echo); err != nil {
		c.log.note("%s was left open by a process that outlived the command; what it says is not kept", stream)
	}
}

// drain reads a pipe: while the command runs whatever comes, and then only what
// is in it. That ends where a read finds less than it has room for: what comes
// behind it somebody says who is not of the group.
type drain struct {
	pipe   *os.File
	exited <-chan struct{}
	left   int
	empty  bool
}

func (d *drain) Read(to []byte) (int, error) {
	select {
	case <-d.exited:
		return d.rest(to)
	default:
	}
	n, err := d.pipe.Read(to)
	if errors.Is(err, os.ErrDeadlineExceeded) { // it is set when the command has ended
		<-d.exited
		return d.rest(to)
	}
	return n, err
}

func (d *drain) rest(to []byte) (int, error) {
	_ = d.pipe.SetReadDeadline(time.Now().Add(drainFor)) // a pipe has deadlines
	n, err := d.pipe.Read(to)
	if n > 0 && (d.empty || d.left <= 0) {
		return 0, os.ErrDeadlineExceeded
	}
	d.left, d.empty = d.left-n, n < len(to)
	return n, err
}

// measure looks how much memory it holds.
func (c *child) measure() { c.peak.Store(max(c.peak.Load(), peakNow(c.cmd.Process.Pid))) }

// peakMemory is what it, or a child of its, held at most. The system counts what
// we held ourselves among it, for a moment of its beginning is ours: below that
// only what was measured is known.
func (c *child) peakMemory() int64 {
	if p := peakOf(c.cmd); p > c.before {
		return p
	}
	return c.peak.Load()
}
