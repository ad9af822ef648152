package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/data/transfer"
)

// ErrSuperseded means that the attempt is no longer valid, because another attempt has replaced it
// or its run has ended. The agent kills the command at once and reports nothing.
var ErrSuperseded = errors.New("the attempt is superseded")

// ErrPassing is wrapped by an error of Options.Equip if another attempt may succeed.
var ErrPassing = errors.New("it may pass")

// Stopping is the cause of a context that ends because the machine stops. By is the time at which
// the attempt must have ended.
type Stopping struct{ By time.Time }

func (s *Stopping) Error() string { return "the machine stopped" }

// runCancelled is the error that ends the attempt of a cancelled run.
type runCancelled struct{ reason string }

func (c *runCancelled) Error() string { return c.reason }

// deadlinePassed is the error that ends an attempt after its deadline.
type deadlinePassed struct{ after time.Duration }

func (l *deadlinePassed) Error() string { return fmt.Sprintf("deadline of %s passed", short(l.after)) }

// fault is an error for which the agent does not retry within the attempt. Usually the command or
// its output caused the error.
type fault struct {
	permanent bool // another attempt would fail too
	err       error
}

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

func permanent(format string, args ...any) error {
	return &fault{permanent: true, err: fmt.Errorf(format, args...)}
}

// verdict returns the outcome to report for an error. If the attempt ended early, the outcome comes
// from the reason for that, not from the error that followed.
func verdict(early, err error) (o tidemill.Outcome, reason string, permanent bool) {
	var (
		stop   *Stopping
		person *runCancelled
		f      *fault
	)
	switch {
	case err == nil:
		return tidemill.OutcomeSucceeded, "", false
	case errors.As(early, &stop):
		return tidemill.OutcomeLeft, early.Error(), false
	case errors.As(early, &person):
		return tidemill.OutcomeCancelled, early.Error(), false
	case early != nil:
		return tidemill.OutcomeFailed, early.Error(), false
	}
	return tidemill.OutcomeFailed, err.Error(), errors.As(err, &f) && f.permanent
}

const (
	leaveWithin = 10 * time.Second // default of Stopping.By
	saveWithin  = 55 * time.Second // time for saving and reporting
	tellWithin  = 15 * time.Second // time for reporting only
	lastWithin  = time.Hour        // longest wait at the end for a gateway that is away
)

// endContexts are the contexts of an attempt. If one context ends, all contexts above it end.
//
//	work:  until the first reason for an early end, of any kind
//	leave: until the command's time to leave is over
//	save:  until nothing can be uploaded any more
//	last:  until nothing can be reported any more
//	dead:  until nothing may be reported any more
//
// logs is apart from them: it ends with save, or some seconds after dead, so that the log of an
// attempt that another worker has ended is complete.
type endContexts struct {
	dead, last, save, leave, work context.Context
	logs                          context.Context
	die, end                      context.CancelCauseFunc
	noLast, noSave, noLeave       context.CancelFunc
	unwatch                       func() bool

	mu     sync.Mutex
	timers []*time.Timer
}

func newEnds(ctx context.Context) *endContexts {
	e := &endContexts{}
	e.dead, e.die = context.WithCancelCause(context.WithoutCancel(ctx))
	e.last, e.noLast = context.WithCancel(e.dead)
	e.save, e.noSave = context.WithCancel(e.last)
	e.leave, e.noLeave = context.WithCancel(e.save)
	e.work, e.end = context.WithCancelCause(e.leave)
	logs, noLogs := context.WithCancel(context.WithoutCancel(ctx))
	e.logs = logs
	context.AfterFunc(e.save, func() {
		if e.isSuperseded() {
			e.after(api.LateLog, noLogs)
		} else {
			noLogs()
		}
	})
	e.unwatch = context.AfterFunc(ctx, func() { e.stop(context.Cause(ctx)) })
	return e
}

// stop is called when the caller's context has ended. The command gets half of the remaining time,
// saving a third, and reporting the rest. If a lot of time remains, saving and reporting get at
// most saveWithin and tellWithin.
func (e *endContexts) stop(why error) {
	if errors.Is(why, ErrSuperseded) {
		e.die(why)
		return
	}
	var s *Stopping
	if !errors.As(why, &s) {
		s = &Stopping{By: time.Now().Add(leaveWithin)}
	}
	e.end(s)
	left := max(time.Until(s.By), 0)
	e.after(max(left/2, left-saveWithin), e.noLeave)
	e.after(max(left*5/6, left-tellWithin), e.noSave)
	e.after(left, e.noLast)
}

// allowUpload is called when only uploading and reporting are left. The upload may take that much
// more time.
func (e *endContexts) allowUpload(more time.Duration) {
	e.after(more+lastWithin*5/6, e.noSave)
	e.after(more+lastWithin, e.noLast)
}

// Longest returns how long an attempt may take after its agent has begun: the deadline, the grace,
// the deadline again for the upload, and the time to report. An agent that takes longer hangs.
func Longest(deadline, grace time.Duration) time.Duration { return 2*deadline + grace + lastWithin }

func (e *endContexts) after(d time.Duration, fn func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.timers = append(e.timers, time.AfterFunc(d, fn))
}

// earlyEnd returns the reason why the attempt ends before its command; nil if there is no such
// reason.
func (e *endContexts) earlyEnd() error { return context.Cause(e.work) }

// isDead reports whether the attempt is superseded.
func (e *endContexts) isDead() bool { return e.dead.Err() != nil }

// isSuperseded reports whether the attempt was superseded before the agent had ended.
func (e *endContexts) isSuperseded() bool { return errors.Is(context.Cause(e.dead), ErrSuperseded) }

func (e *endContexts) close() {
	e.unwatch()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.timers {
		t.Stop()
	}
	e.die(nil)
}

// short formats a duration without zeros: 1h instead of 1h0m0s.
func short(d time.Duration) string {
	switch {
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= time.Minute && d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}

// readMetrics reads the command's metrics.
func (a *attempt) readMetrics() error {
	all, left, err := metricsOf(a.dirs.out())
	if left > 0 {
		a.log.note("%s has %d numbers more than are kept: the first by their names are", metricsName, left)
	}
	a.metrics = all
	return err
}

// report reports the end of the attempt.
func (a *attempt) report(err error) error {
	a.ends.allowUpload(0)
	if !a.party.isFirst() {
		return a.leave(err)
	}
	if err != nil && a.ending == nil && a.order.Run != "" {
		a.log.note("%v", err) // the log then explains why it contains no output of the command
	}
	if err != nil && a.ending != nil && a.metrics == nil {
		a.metrics, _, _ = metricsOf(a.dirs.out()) // metrics until the failure; err is reported anyway
	}
	a.log.close()
	if a.ends.isDead() {
		return ErrSuperseded
	}
	return a.reportEnd(a.lastWord(err))
}

// storeLag is the time in which the store may find what it has taken. A bucket that fails over may
// lag by minutes.
const storeLag = 10 * time.Minute

// reportEnd reports the end. If the store does not have the output, it uploads it again. If the gateway
// refuses the report for another reason, it reports a failure.
func (a *attempt) reportEnd(word api.Finish) error {
	a.telling.Store(true)
	said := a.finish(word)
	wait, until := retry.Backoff{First: firstWait, Cap: longestWait, Jitter: 0.5}, time.Now().Add(storeLag)
	for isAway(said) && time.Now().Before(until) && retry.Sleep(a.ends.save, wait.Next()) == nil {
		if err := a.transferClient().Put(a.ends.save, a.dirs.out(), word.Files, nil); err != nil && !transfer.Passes(a.ends.save, err) {
			said = errors.Join(said, fmt.Errorf("upload the output again: %w", err))
			break
		}
		said = a.finish(word)
	}
	if r := new(refusal); errors.As(said, &r) && !a.ends.isDead() {
		said = a.finish(smallerReport(word, r))
	}
	if a.ends.isDead() {
		return ErrSuperseded
	}
	if said == nil {
		a.told = word.Outcome
	}
	return said
}

// isAway reports whether the gateway refuses a request because the store lacks a tree or a file of it.
func isAway(err error) bool {
	p := new(api.Problem)
	return errors.As(err, &p) && p.Type == api.ProblemBase+api.UnknownData
}

func (a *attempt) finish(f api.Finish) error {
	if err := a.client.postJSON(a.ends.last, "/finish", f, &api.Finished{}); err != nil {
		return fmt.Errorf("report the end of attempt %s (%s): %w", a.o.Attempt, f.Outcome, err)
	}
	return nil
}

// lastWord returns the report of the attempt's end.
func (a *attempt) lastWord(err error) api.Finish {
	f := api.Finish{Where: a.where, Inside: a.o.Inside, Files: []api.File{}, Result: tidemill.Result{
		Exit: -1, PeakMemory: a.peak, GPUSeconds: float64(a.gpus()) * a.seconds, Stages: a.stages, Metrics: a.metrics,
		LastLines: a.log.tail(), LogBytes: a.log.told, Cut: a.log.isIncomplete()}}
	f.Outcome, f.Reason, f.Permanent = verdict(a.ends.earlyEnd(), err)
	if line := a.log.lastLine(); line != "" && f.Outcome == tidemill.OutcomeFailed && a.failedItself() {
		f.Reason += ": " + line
	}
	if a.ending != nil {
		f.Result.Exit, f.Result.Signal = a.ending.exit, a.ending.signal
		if a.equipment.Engine != "" && a.isContained() {
			f.Where.Image = digestOf(a.equipment.Engine, a.order.Plan.Image)
		}
	}
	if f.Outcome == tidemill.OutcomeSucceeded {
		f.Files = append(f.Files, a.made...)
	}
	return f
}

// failedItself reports whether the attempt ended because its command failed. Then the command's last
// line usually says why.
func (a *attempt) failedItself() bool {
	return a.ends.earlyEnd() == nil && a.ending != nil && a.ending.err != nil
}

// gpus returns how many GPUs all workers of the attempt have held.
func (a *attempt) gpus() int {
	n := len(a.equipment.GPUs)
	if a.o.Inside {
		n = a.order.Plan.GPUs // the plan's count, because nvidia-smi may not list all of them
	}
	return n * max(1, len(a.o.Workers))
}

// smallerReport returns a smaller report for the case that the gateway refuses the full one. Without
// any report the run would count as lost and begin again.
func smallerReport(f api.Finish, refused error) api.Finish {
	why := fmt.Sprintf("the gateway does not take how it ended: %v", refused)
	if f.Reason != "" {
		why = f.Reason + "; " + why
	}
	if f.Outcome == tidemill.OutcomeSucceeded {
		f.Outcome, f.Permanent = tidemill.OutcomeFailed, true
	}
	f.Reason, f.Files = why, []api.File{}
	f.Result.Metrics, f.Result.LastLines = nil, ""
	return f
}

// ending is the end of the command.
type ending struct {
	exit   int // -1 if a signal ended it
	signal string
	err    error // nil for a success
}

// endingOf returns the ending for the error of Wait.
func endingOf(err error, p *tidemill.Plan) ending { // p is nil if no engine ran the command
	var exit *exec.ExitError
	var played exitStatus
	switch {
	case err == nil:
		return ending{}
	case errors.As(err, &played):
		return exitedWith(int(played), p)
	case !errors.As(err, &exit):
		return ending{exit: -1, err: fmt.Errorf("wait for the command: %w", err)}
	}
	if name := signalOf(exit); name != "" {
		return killedBy(name)
	}
	return exitedWith(exit.ExitCode(), p)
}

func killedBy(signal string) ending {
	return ending{exit: -1, signal: signal, err: errors.New("killed by " + signal + why(signal))}
}

func why(signal string) string {
	switch signal {
	case "SIGKILL":
		return " (out of memory?)"
	case "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT":
		return " (a fault in native code)"
	}
	return ""
}

// exitedWith returns the ending for an exit status. Container engines use some statuses for their
// own errors.
func exitedWith(code int, p *tidemill.Plan) ending {
	e := ending{exit: code, err: fmt.Errorf("exit status %d", code)}
	if p == nil {
		return e
	}
	switch {
	case code == 125:
		e.err = fmt.Errorf("the container of %s was not started: the log has the reason", p.Image)
	case code == 126, code == 127:
		e.err = permanent("the image %s has no command that could be run as %q (exit status %d)", p.Image, p.Command, code)
	case code == 137:
		return killedBy("SIGKILL")
	case code == 139:
		return killedBy("SIGSEGV")
	case code == 143:
		return killedBy("SIGTERM")
	}
	return e
}

// ooms are the kernel's counts of a container's memory.
type ooms struct {
	kills int64 // number of its processes that were killed for memory
	limit int64 // bytes; 0 if there is none, or it is unknown
}

// readOOMs reads the counts from control groups of version 1 or 2. A count that cannot be read is
// 0.
func readOOMs(root string) ooms {
	return ooms{
		kills: max(counted(root, "memory.events", "oom_kill"), counted(root, "memory/memory.oom_control", "oom_kill")),
		limit: max(bound(root, "memory.max"), bound(root, "memory/memory.limit_in_bytes")),
	}
}

// counted returns the number after a name in a file.
func counted(root, file, name string) int64 {
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		if fields := bytes.Fields(line); len(fields) == 2 && string(fields[0]) == name {
			n, _ := strconv.ParseInt(string(fields[1]), 10, 64) // 0 if not a number
			return n
		}
	}
	return 0
}

func bound(root, file string) int64 {
	const none = 1 << 60 // about the number in the file if there is no limit
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	if err != nil || n >= none {
		return 0
	}
	return n
}

const killedByShell = 128 + 9 // exit status of a shell whose command was killed

// explain returns the error of a failed command, and whether the kernel killed it for memory.
func (before ooms) explain(end ending, now ooms, limit int64) error {
	if now.kills <= before.kills {
		return end.err
	}
	if limit <= 0 {
		limit = now.limit
	}
	why := "killed for memory"
	if limit > 0 {
		why += fmt.Sprintf(": the limit is %s (run.memory)", inUnits(limit))
	}
	if end.signal == "SIGKILL" || end.exit == killedByShell {
		return fmt.Errorf("%s", why)
	}
	return fmt.Errorf("%w; a process of it was %s", end.err, why)
}

// inUnits formats a number of bytes as a config does.
func inUnits(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size && n%u.size == 0 {
			return fmt.Sprintf("%d%s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
