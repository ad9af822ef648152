package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"tidemill.dev/internal/runs/agent"
)

// GuardArgument is the argument that makes the program a guard.
const GuardArgument = "guard"

// Guard is the main function of the guard: it ends the remaining commands after the launcher's
// process has ended. Guard ignores SIGTERM and similar signals, because it must not end before the
// launcher.
func Guard(ctx context.Context) error {
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	return guard(context.WithoutCancel(ctx), os.Stdin)
}

// guard reads the processes and containers to end until the input closes, then ends them.
func guard(ctx context.Context, from io.Reader) error {
	cleanup := newCleanup()
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		cleanup.hear(lines.Text())
	}
	cleanup.end(ctx)
	return lines.Err()
}

// cleanup holds the process groups, the cookie and the engine that a guard cleans up.
type cleanup struct {
	launcherRecord
	groups map[int]bool
}

func newCleanup() *cleanup { return &cleanup{groups: map[int]bool{}} }

func (c *cleanup) hear(line string) {
	word, rest, _ := strings.Cut(line, " ")
	switch {
	case word == "cookie":
		c.Cookie = rest
	case word == "engine":
		c.Engine = rest
	case strings.HasPrefix(line, "+"):
		if pid, err := strconv.Atoi(line[1:]); err == nil && pid > 1 {
			c.groups[pid] = true
		}
	case strings.HasPrefix(line, "-"):
		if pid, err := strconv.Atoi(line[1:]); err == nil {
			delete(c.groups, pid)
		}
	}
}

func (c *cleanup) end(ctx context.Context) {
	for pid := range c.groups {
		killGroup(pid)
	}
	if c.Cookie != "" {
		endAll(ctx, c.launcherRecord)
	}
}

// guardian is the launcher's side of the guard process. The guard reads the processes and
// containers to end from its standard input, and ends them when the input closes.
type guardian struct {
	cmd *exec.Cmd

	mu   sync.Mutex
	in   io.WriteCloser
	told string // last reported path of the engine

	ending sync.Once
	ended  error // result of finish
}

func startGuard(command []string, cookie string) (_ *guardian, err error) {
	if len(command) == 0 {
		if command, err = ownCommand(GuardArgument); err != nil {
			return nil, err
		}
	}
	g := &guardian{cmd: exec.Command(command[0], command[1:]...)}
	newSession(g.cmd)
	if g.in, err = g.cmd.StdinPipe(); err == nil {
		err = g.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	g.writeLine("cookie " + cookie)
	return g, nil
}

// writeLine writes a line to the guard. If the guard was killed, the line is lost, and the next
// launcher cleans up.
func (g *guardian) writeLine(line string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, _ = io.WriteString(g.in, line+"\n")
}

func (g *guardian) add(pid int)    { g.writeLine("+" + strconv.Itoa(pid)) }
func (g *guardian) remove(pid int) { g.writeLine("-" + strconv.Itoa(pid)) }

// engine reports the container engine to the guard.
func (g *guardian) engine(path string) {
	g.mu.Lock()
	known := g.told == path
	g.told = path
	g.mu.Unlock()
	if !known {
		g.writeLine("engine " + path)
	}
}

// close lets the guard clean up, and waits for the guard's end.
func (g *guardian) close(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.ending.Do(g.finish)
	}()
	select {
	case <-done:
		if g.ended != nil {
			return fmt.Errorf("wait for the guard: %w", g.ended)
		}
		return nil
	case <-ctx.Done(): // the guard continues alone
		return fmt.Errorf("wait for the guard: %w", context.Cause(ctx))
	}
}

func (g *guardian) finish() {
	g.mu.Lock()
	err := g.in.Close()
	g.mu.Unlock()
	g.ended = errors.Join(err, g.cmd.Wait())
}

// sweeper ends processes that have left the group of an attempt and still run after its end. Such
// processes could occupy a GPU for ever. Listing all processes after each attempt costs too much,
// so one sweep serves all attempts that end within sweepAfter.
type sweeper struct {
	cookie string
	spare  func(run string, attempt int) bool

	mu     sync.Mutex
	due    *time.Timer
	closed bool
}

const sweepAfter = 2 * time.Second

func newSweeper(cookie string, spare func(string, int) bool) *sweeper {
	return &sweeper{cookie: cookie, spare: spare}
}

func (s *sweeper) soon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.due == nil && !s.closed {
		s.due = time.AfterFunc(sweepAfter, s.sweep)
	}
}

func (s *sweeper) sweep() {
	s.mu.Lock()
	s.due = nil
	s.mu.Unlock()
	sweep(s.cookie, s.spare)
}

// close stops the sweeper. The guard ends the remaining processes.
func (s *sweeper) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.due != nil {
		s.due.Stop()
	}
}

// launcherRecord is a launcher's record for its successor, which ends the remaining processes if the
// launcher was killed.
type launcherRecord struct {
	Cookie string `json:"cookie"`
	Engine string `json:"engine,omitempty"`
}

func legacyFile(dir string) string { return filepath.Join(dir, "launcher.json") }

// leave writes the record, before the first process starts.
func (l launcherRecord) leave(dir string) error {
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	draft := legacyFile(dir) + ".new"
	if err := os.WriteFile(draft, text, 0o600); err != nil {
		return err
	}
	return os.Rename(draft, legacyFile(dir))
}

// cleanUpPredecessor ends the processes of a killed predecessor and deletes its work folder.
func cleanUpPredecessor(ctx context.Context, dir string) error {
	text, err := os.ReadFile(legacyFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var l launcherRecord
	if json.Unmarshal(text, &l) == nil && l.Cookie != "" { // the cookie identifies the processes
		endAll(ctx, l)
	}
	return agent.RemoveFolder(filepath.Join(dir, workName))
}

// endAll ends every process and container with the cookie.
func endAll(ctx context.Context, l launcherRecord) {
	endContainers(ctx, l.Engine, l.Cookie)
	for range sweepsAtMost {
		if sweep(l.Cookie, func(string, int) bool { return false }) == 0 {
			return
		}
	}
}

// sweepsAtMost limits the number of sweeps if processes keep starting other processes.
const sweepsAtMost = 100
