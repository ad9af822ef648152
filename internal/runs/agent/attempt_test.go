//go:build linux

package agent

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// The command of a cancelled run gets SIGTERM and may save. If it does not exit, it is killed with
// its whole process group.
func TestCancel(t *testing.T) {
	for what, c := range map[string]struct {
		script, signal, saved string
		grace                 time.Duration
	}{
		"it leaves":   {`trap 'echo saved > $TIDEMILL_CHECKPOINT/s; exit 0' TERM; echo {} > $TIDEMILL_OUT/metrics.jsonl; sleep 600 & wait`, "", "saved\n", patience},
		"it does not": {`trap "" TERM; (trap "" TERM; sleep 600) & echo {} > $TIDEMILL_OUT/metrics.jsonl; sleep 600; sleep 600`, "SIGKILL", "", time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			g.order.BeatSeconds, g.order.Plan.Grace = 0.02, c.grace
			g.sh(c.script)
			o := g.options()
			group := 0
			o.Started = func(pid int) { group = pid }
			ended := g.begin(t.Context(), o)
			g.waitUntil("the command is at work", func() bool { return len(g.progress) > 0 })
			g.set(func() { g.answer.Cancel = "ada wants it no more" })
			if err := g.wait(ended); err != nil {
				t.Fatal(err)
			}
			f := g.word()
			if f.Outcome != tidemill.OutcomeCancelled || f.Reason != "ada wants it no more" || f.Result.Signal != c.signal {
				t.Errorf("it ended so: %+v", f)
			}
			if c.saved != "" && (len(g.saved) != 1 || g.content(g.trees[g.saved[0].Tree])["s"] != c.saved) {
				t.Errorf("what it saved at its end is %v", g.saved)
			}
			waitGone(t, "its group", func(state, pgrp string, pid int) bool { return pgrp == strconv.Itoa(group) })
		})
	}
}

// A command that takes too long gets SIGTERM, and is killed if it does not exit.
func TestTooLate(t *testing.T) {
	for what, c := range map[string]struct {
		script, signal string
		grace          time.Duration
	}{
		"it leaves":   {`echo begun; sleep 600; sleep 600`, "SIGTERM", patience},
		"it does not": {`trap "" TERM; echo begun; sleep 600; sleep 600`, "SIGKILL", 300 * time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f, reason := tooLate(t, func(g *gateway) Options {
				g.order.Plan.Grace = c.grace
				g.sh(c.script)
				return g.options()
			})
			if f.Outcome != tidemill.OutcomeFailed || f.Reason != reason || f.Permanent || f.Result.Exit != -1 || f.Result.Signal != c.signal || len(f.Files) > 0 {
				t.Errorf("it ended so: %+v, not by the %s", f, reason)
			}
		})
	}
}

// If the machine stops, the command saves a checkpoint, and the next attempt resumes from it.
func TestTheMachineStops(t *testing.T) {
	g := newGateway(t)
	g.sh(`trap 'echo 7 > $TIDEMILL_CHECKPOINT/step; exit 0' TERM; echo {} > $TIDEMILL_OUT/metrics.jsonl; sleep 600 & wait`)
	ctx, stop := context.WithCancelCause(t.Context())
	ended := g.begin(ctx, g.options())
	g.waitUntil("the command is at work", func() bool { return len(g.progress) > 0 })
	stop(&Stopping{By: time.Now().Add(patience)})
	if err := g.wait(ended); err != nil {
		t.Fatal(err)
	}
	if f := g.word(); f.Outcome != tidemill.OutcomeLeft || f.Reason != "the machine stopped" || f.Permanent {
		t.Errorf("it ended so: %+v", f)
	}
	if len(g.saved) != 1 || g.content(g.trees[g.saved[0].Tree])["step"] != "7\n" {
		t.Errorf("it has saved %v", g.saved)
	}
}

// If the machine stops, neither a command that ignores SIGTERM nor a stopped gateway delays the
// end.
func TestTheMachineStopsSoon(t *testing.T) {
	g := newGateway(t)
	g.sh(`trap "" TERM; echo hello; echo {} > $TIDEMILL_OUT/metrics.jsonl; echo a > $TIDEMILL_CHECKPOINT/a; sleep 600; sleep 600`)
	ctx, stop := context.WithCancelCause(t.Context())
	o := g.options()
	ended := g.begin(ctx, o)
	g.waitUntil("the command is at work", func() bool { return len(g.progress) > 0 })
	g.restart()
	stop(&Stopping{By: time.Now().Add(600 * time.Millisecond)})
	if err := g.wait(ended); err == nil || errors.Is(err, ErrSuperseded) {
		t.Errorf("nobody heard its last word, and its error is %v", err)
	}
	if _, err := os.Stat(o.Work); !os.IsNotExist(err) {
		t.Errorf("its folder is left: %v", err)
	}
}

// The machine stops before the command has begun.
func TestStoppedBeforeItBegan(t *testing.T) {
	g := newGateway(t)
	g.sh("exit 0")
	o := g.options()
	ctx, stop := context.WithCancelCause(t.Context())
	o.Equip = func(ctx context.Context, _ tidemill.Plan) (Equipment, error) {
		stop(nil)
		<-ctx.Done()
		return Equipment{}, context.Cause(ctx)
	}
	if err := g.wait(g.begin(ctx, o)); err != nil {
		t.Fatal(err)
	}
	if f := g.word(); f.Outcome != tidemill.OutcomeLeft || f.Result.Exit != -1 {
		t.Errorf("it ended so: %+v", f)
	}
}

// Child processes of a command are killed at its end, and do not delay the end of the attempt.
func TestNothingOutlivesTheCommand(t *testing.T) {
	for what, script := range map[string]string{
		"in its group":              `sleep 600 & sleep 600 & echo $! > $TIDEMILL_OUT/pid`,
		"with closed pipes":         `exec >&- 2>&-; sleep 600 & echo $! > $TIDEMILL_OUT/pid`,
		"in a session, with a pipe": `setsid sh -c 'touch $TIDEMILL_OUT/apart; while :; do echo still; sleep 0.01; done' & echo $! > $TIDEMILL_OUT/pid; until test -e $TIDEMILL_OUT/apart; do sleep 0.01; done`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t)
			g.sh(script)
			f := g.run(g.options())
			if f.Outcome != tidemill.OutcomeSucceeded {
				t.Fatalf("it ended so: %+v", f)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(g.content(f.Files)["pid"]))
			if err != nil {
				t.Fatal(err)
			}
			if what == "in a session, with a pipe" {
				_ = syscall.Kill(pid, syscall.SIGKILL) // the test must kill it, because the agent's caller does that otherwise
				if !strings.Contains(f.Result.LastLines, "outlived the command") {
					t.Errorf("the log does not say that something was left: %q", f.Result.LastLines)
				}
				return
			}
			waitGone(t, "its child", func(_, _ string, p int) bool { return p == pid })
		})
	}
}

// waitGone waits until no matching process is alive, because a killed process takes a moment to die.
func waitGone(t *testing.T, what string, is func(state, group string, pid int) bool) {
	t.Helper()
	late := time.After(patience)
	for {
		if !slices.ContainsFunc(processes(t), func(p [3]string) bool {
			pid, _ := strconv.Atoi(p[0])
			return p[1] != "Z" && p[1] != "X" && is(p[1], p[2], pid)
		}) {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-late:
			t.Fatalf("%s is still alive", what)
		}
	}
}

// processes returns pid, state and group of all processes of the machine.
func processes(t *testing.T) (all [][3]string) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the process has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		all = append(all, [3]string{filepath.Base(filepath.Dir(name)), fields[0], fields[2]})
	}
	return all
}

// The gateway restarts during a run, and nothing of the run is lost.
func TestTheGatewayRestarts(t *testing.T) {
	g := newGateway(t)
	g.order.BeatSeconds = 0.02
	flag := filepath.Join(t.TempDir(), "flag")
	g.sh(`echo before; echo '{"step":1}' > $TIDEMILL_OUT/metrics.jsonl
		while ! test -e ` + flag + `; do sleep 0.02; done
		echo '{"step":2}' >> $TIDEMILL_OUT/metrics.jsonl; echo after; echo made > $TIDEMILL_OUT/made`)
	o := g.options()
	ended := g.begin(t.Context(), o)
	g.waitUntil("it has told a step", func() bool { return len(g.progress) > 0 })
	again := g.restart()
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	again()
	if err := g.wait(ended); err != nil {
		t.Fatal(err)
	}
	f := g.word()
	if f.Outcome != tidemill.OutcomeSucceeded || g.content(f.Files)["made"] != "made\n" {
		t.Errorf("it ended so: %+v", f)
	}
	if log := strings.Join(g.log(), "|"); log != "stdout F before|stdout F after" {
		t.Errorf("its log is %s", log)
	}
	if last := g.progress[len(g.progress)-1]; last.Step != 2 {
		t.Errorf("the last step that was told is %v", last.Step)
	}
}

// While the gateway is away, a command with a lot of output waits. Its output is neither lost nor
// kept in memory.
func TestALogWaitsForTheGateway(t *testing.T) {
	g := newGateway(t)
	const lines = 60_000 // lines of 100 bytes: much more than pipe, chunks and queue hold
	far := filepath.Join(t.TempDir(), "far")
	g.sh(`i=0; while test $i -lt 60; do
			head -c 100000 /dev/zero | tr '\0' x | fold -w 99 | head -n 1000; i=$((i+1)); echo $i > ` + far + `; done; echo end`)
	away := true
	g.fault = func(w http.ResponseWriter, r *http.Request, route string) bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		if route == "/log" && away {
			problem(w, http.StatusServiceUnavailable, api.Unavailable)
			return true
		}
		return false
	}
	ended := g.begin(t.Context(), g.options())
	g.waitUntil("the log was sent in vain some times", func() bool {
		n := 0
		for _, r := range g.asked {
			if r == "/log" {
				n++
			}
		}
		_, err := os.Stat(far)
		return n > 5 && err == nil
	})
	if text, err := os.ReadFile(far); err != nil || strings.TrimSpace(string(text)) == "60" { // the file is rewritten for each number, and empty for a moment
		t.Errorf("the command has not waited: it is at %q (%v)", text, err)
	}
	g.set(func() { away = false })
	if err := g.wait(ended); err != nil {
		t.Fatal(err)
	}
	log := g.log()
	if len(log) < lines || log[len(log)-1] != "stdout F end" {
		t.Errorf("the log has %d lines, the last %q", len(log), log[len(log)-1])
	}
	for _, c := range g.chunks {
		if len(c) > api.MaxLogChunk {
			t.Errorf("a chunk has %d bytes", len(c))
		}
	}
}

// The deadline holds even while the gateway takes no log.
func TestADeadlineWhileTheLogWaits(t *testing.T) {
	f, reason := tooLate(t, func(g *gateway) Options {
		g.order.Plan.Grace = 100 * time.Millisecond
		g.sh(`trap "" TERM; yes`)
		g.fault = func(w http.ResponseWriter, r *http.Request, route string) bool {
			if route == "/log" && count(g, "/log") < 8 {
				problem(w, http.StatusServiceUnavailable, api.Unavailable)
				return true
			}
			return false
		}
		return g.options()
	})
	if f.Result.Signal != "SIGKILL" || f.Reason != reason {
		t.Errorf("it ended so: %+v, not by the %s", f, reason)
	}
}

// A run does not fail if the gateway refuses its log.
func TestALogThatIsRefused(t *testing.T) {
	g := newGateway(t)
	g.sh(`echo hello`)
	g.fault = func(w http.ResponseWriter, r *http.Request, route string) bool {
		if route == "/log" {
			problem(w, http.StatusRequestEntityTooLarge, api.TooLarge)
		}
		return route == "/log"
	}
	if f := g.run(g.options()); f.Outcome != tidemill.OutcomeSucceeded || !f.Result.Cut || f.Result.LogBytes != 0 || f.Result.LastLines != "hello" {
		t.Errorf("it ended so: %+v", f)
	}
}

// A checkpoint is saved while the command runs, and again only after a change.
func TestCheckpointWhileItRuns(t *testing.T) {
	g := newGateway(t)
	flag := filepath.Join(t.TempDir(), "flag")
	g.sh(`cd $TIDEMILL_CHECKPOINT; echo 1 > draft; mv draft state; while ! test -e ` + flag + `; do sleep 0.05; done; exit 1`)
	o := g.options()
	knows := &responseSignal{what: func(res *http.Response) bool { return strings.HasSuffix(res.Request.URL.Path, "/checkpoint") }, heard: make(chan struct{})}
	o.HTTP = &http.Client{Transport: knows}
	ended := g.begin(t.Context(), o)
	g.waitUntil("it has saved", func() bool { return len(g.saved) == 1 })
	<-knows.heard // else the agent does not know that the checkpoint was saved, and saves again at the end
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.wait(ended); err != nil {
		t.Fatal(err)
	}
	if len(g.saved) != 1 || g.content(g.trees[g.saved[0].Tree])["state"] != "1\n" {
		t.Errorf("it has saved %v", g.saved)
	}
}
