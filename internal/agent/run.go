package agent

import (
	"context"
	"errors"
	"sync"
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
