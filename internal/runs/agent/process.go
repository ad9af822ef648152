package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"
)

const defaultGrace = 30 * time.Second

// run runs the command, and meanwhile saves its log, progress and checkpoints.
func (a *attempt) run() error {
	if err := a.ends.earlyEnd(); err != nil {
		return err
	}
	cmd, kill, err := a.command()
	if err != nil {
		return err
	}
	a.log.masks = a.masksOf(&a.order.Plan)
	a.o.Prepare(cmd)
	a.checkpoints = checkpoints{dir: a.dirs.checkpoint(), save: a.saveCheckpoint, note: a.log.note}
	a.checkpoints.begin() // before the command can change the files
	if a.o.Inside {
		a.ooms = readOOMs(a.o.Cgroup)
	}
	c, err := a.start(cmd, kill)
	if err != nil {
		return startError(&a.order.Plan, err)
	}
	a.o.Started(c.pid)
	from := time.Now()
	stop := a.watch(c)
	asked := a.await(c)
	a.o.Ended(c.pid)
	a.seconds = time.Since(from).Seconds()
	a.ends.allowUpload(a.order.Plan.Deadline)
	c.reads.Wait()
	stop()
	return a.recordExit(c, asked)
}

// recordExit records the command's end. Exit 0 after SIGTERM does not count as success, because the
// command may not have finished.
func (a *attempt) recordExit(c *child, asked bool) error {
	end := endingOf(c.err, a.imageRun())
	a.ending = &end
	if a.isMeasured() {
		a.peak = c.peakMemory()
	}
	if a.o.Inside && end.err != nil && !asked {
		end.err = a.ooms.explain(end, readOOMs(a.o.Cgroup), a.order.Plan.Memory)
	}
	if over := c.over.Load(); over > 0 && !asked {
		end.err = fmt.Errorf("out of memory: it held %d MiB, more than memory: %s", over>>20, inUnits(a.memory()))
	}
	if asked {
		end.err = a.ends.earlyEnd()
	}
	if end.err != nil && a.party.isFirst() {
		a.checkpoints.finish(a.ends.save) // saved for the next attempt
	}
	return end.err
}

// watch follows the command's files while it runs. The returned function stops the watching, waits
// until it has stopped, and reports the last progress.
func (a *attempt) watch(c *child) (stop func()) {
	p := &progress{client: a.client, steps: steps{folder: a.dirs.out()}, attempt: a.order.Attempt, now: a.o.Now, log: a.log, measure: c.measure}
	ctx, cancel := context.WithCancel(a.ends.save)
	var all sync.WaitGroup
	if limit := a.memory(); limit > 0 && LimitsMemory {
		all.Go(func() { c.limitMemory(ctx, limit) })
	}
	if !a.party.isFirst() {
		p.some, p.stopped = false, true // only the first worker reports progress and saves checkpoints
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

// start starts the command.
func (a *attempt) start(cmd *exec.Cmd, kill func()) (*child, error) {
	if a.o.Play != nil {
		return play(a.o.Play, cmd, a.log, a.o.Echo), nil
	}
	return start(cmd, a.log, kill, a.o.Echo)
}

// isMeasured reports whether the memory of our child is that of the command. Else the child is an engine's client, or
// there is none.
func (a *attempt) isMeasured() bool { return !a.isContained() && a.o.Play == nil }

// memory returns the limit of a command in a folder. An engine or a cluster limits a container.
func (a *attempt) memory() int64 {
	switch s := a.order.Plan.Servers; {
	case !a.isMeasured() || a.o.Inside:
		return 0
	case s != nil && a.party.part == Server:
		return s.Memory
	}
	return a.order.Plan.Memory
}

// The memory of a command is measured often if it is near the limit. With 300 processes on the
// machine, one measurement takes 3 ms.
const (
	memoryAsked = 500 * time.Millisecond
	memoryNear  = 50 * time.Millisecond
)

// limitMemory kills the command once its processes hold more memory than the limit. A control group
// would be exact, but neither a container, nor a login by ssh, nor macOS lets a user make one.
// RLIMIT_AS counts the address space, of which CUDA takes far more than memory, and RLIMIT_DATA is
// for each process and counts memory that was never touched.
func (c *child) limitMemory(ctx context.Context, limit int64) {
	t := time.NewTimer(memoryNear)
	defer t.Stop()
	for {
		select {
		case <-c.exited:
			return
		case <-ctx.Done():
			return
		case <-t.C:
		}
		held, members := groupMemory(c.pid)
		if held > limit {
			c.over.Store(held)
			killAll(members) // also those that have left the group
			return
		}
		t.Reset(memoryAsked)
		if held > limit/4 {
			t.Reset(memoryNear)
		}
	}
}

// await waits for the command, and ends the command if the attempt ends early. It reports whether
// the command got SIGTERM.
func (a *attempt) await(c *child) (asked bool) {
	select {
	case <-c.exited:
		return false
	case <-a.ends.work.Done():
	}
	if !a.ends.isDead() {
		c.ask()
		a.grace(c)
	}
	c.end()
	<-c.exited
	return true
}

// grace waits until a command has ended after SIGTERM, for the grace at most. If the machine stops,
// the wait is shorter, so that time remains to save the checkpoint.
func (a *attempt) grace(c *child) {
	d := a.order.Plan.Grace
	if d <= 0 {
		d = defaultGrace
	}
	if errors.Is(a.ends.earlyEnd(), errOver) {
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
	drainFor   = 500 * time.Millisecond // longest silence of a pipe after the command's end
	drainBytes = 2 << 20                // largest size to read after the command's end; more than a pipe holds
)

// child is the command, once it runs.
type child struct {
	cmd    *exec.Cmd
	pid    int    // 0 if the command is played
	ask    func() // sends SIGTERM to its process group
	end    func() // sends SIGKILL
	log    *logbook
	exited chan struct{}
	err    error // result of Wait; valid once exited is closed
	before int64 // our own peak memory at its start
	peak   atomic.Int64
	over   atomic.Int64 // memory for which it was killed; 0 if it was not
	pipes  []*os.File
	reads  sync.WaitGroup
	kill   func() // kills the command's container, which is not in its process group
	echo   func(stream string, data []byte)
}

// start starts a command in its own process group and reads its output.
func start(cmd *exec.Cmd, log *logbook, kill func(), echo func(string, []byte)) (*child, error) {
	c := &child{cmd: cmd, log: log, exited: make(chan struct{}), before: ownPeak(), kill: kill, echo: echo}
	theirs, err := c.plug()
	if err == nil {
		ownGroup(cmd)
		err = cmd.Start()
	}
	for _, f := range theirs {
		_ = f.Close() // the child has its own copies
	}
	if err != nil {
		for _, f := range c.pipes {
			_ = f.Close() // nothing was read from them
		}
		return nil, err
	}
	for i, stream := range []string{stdout, stderr} {
		c.reads.Go(func() { c.read(stream, c.pipes[i]) })
	}
	c.pid = cmd.Process.Pid
	c.ask, c.end = func() { askGroup(c.pid) }, func() { killGroup(c.pid) }
	go c.killGroup()
	return c, nil
}

// plug gives the command its ends of two pipes. They are files, so that Wait waits only for the
// command and not for all processes that hold a pipe.
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

// killGroup kills the rest of the process group after the command has ended. A process outside the
// group may still hold the pipes, so they are drained without waiting for their end.
func (c *child) killGroup() {
	c.err = c.cmd.Wait()
	c.end()
	if c.err != nil {
		c.kill()
	}
	close(c.exited)
	for _, p := range c.pipes {
		_ = p.SetReadDeadline(time.Now().Add(drainFor)) // a closed pipe is drained
	}
}

// read copies a pipe into the log until its end, or until the data from before the command's end.
func (c *child) read(stream string, p *os.File) {
	defer p.Close()
	left := &drain{pipe: p, exited: c.exited, left: drainBytes}
	if err := c.log.copyStream(stream, left, c.echo); err != nil {
		c.log.note("%s was left open by a process that outlived the command; its output is not kept", stream)
	}
}

// drain reads a pipe. After the command's end it reads only the data that is in the pipe already.
// It stops once a read returns less than it has room for, because later data comes from a process
// outside the command's group.
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
	if errors.Is(err, os.ErrDeadlineExceeded) { // the deadline is set when the command has ended
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

// measure records how much memory the command holds.
func (c *child) measure() {
	if c.pid > 0 {
		c.peak.Store(max(c.peak.Load(), peakNow(c.pid)))
	}
}

// peakMemory returns the peak memory of the command or one of its children. Right after the fork
// the child shares our memory, and the system counts our memory as the child's. So below our own
// peak, only the measured values are right.
func (c *child) peakMemory() int64 {
	if p := peakOf(c.cmd); p > c.before {
		return p
	}
	return c.peak.Load()
}
