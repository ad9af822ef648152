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
)

// GuardArgument is the one argument that a program is called with to be a guard.
const GuardArgument = "guard"

// Guard is what the guard's process does: it ends what is left of the commands
// when the process that started it is no more. What asks other programs to leave
// does not concern it: it leaves with the launcher, and not before.
func Guard(ctx context.Context) error {
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	return guard(context.WithoutCancel(ctx), os.Stdin)
}

// guard reads what there is to end, to the end of what it is told.
func guard(ctx context.Context, from io.Reader) error {
	charge := newCharge()
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		charge.hear(lines.Text())
	}
	charge.end(ctx)
	return lines.Err()
}

// charge is what a guard is to end.
type charge struct {
	legacy
	groups map[int]bool
}

func newCharge() *charge { return &charge{groups: map[int]bool{}} }

func (c *charge) hear(line string) {
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

func (c *charge) end(ctx context.Context) {
	for pid := range c.groups {
		killGroup(pid)
	}
	if c.Cookie != "" {
		endAll(ctx, c.legacy)
	}
}

// guardian is the guard as the launcher sees it: a process that is told what
// there is to end. That it is to do so it sees by the end of what it is told.
type guardian struct {
	cmd *exec.Cmd

	mu   sync.Mutex
	in   io.WriteCloser
	told string // the engine

	ending sync.Once
	ended  error // good once it has
}

func startGuard(command []string, cookie string) (_ *guardian, err error) {
	if len(command) == 0 {
		if command, err = ours(GuardArgument); err != nil {
			return nil, err
		}
	}
	g := &guardian{cmd: exec.Command(command[0], command[1:]...)}
	apart(g.cmd)
	if g.in, err = g.cmd.StdinPipe(); err == nil {
		err = g.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	g.say("cookie " + cookie)
	return g, nil
}

// say tells the guard a line. One that was killed hears nothing: then the next
// launcher does its work.
func (g *guardian) say(line string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, _ = io.WriteString(g.in, line+"\n")
}

func (g *guardian) add(pid int)    { g.say("+" + strconv.Itoa(pid)) }
func (g *guardian) remove(pid int) { g.say("-" + strconv.Itoa(pid)) }

// engine tells it which engine has containers of ours.
func (g *guardian) engine(path string) {
	g.mu.Lock()
	known := g.told == path
	g.told = path
	g.mu.Unlock()
	if !known {
		g.say("engine " + path)
	}
}

// close has the guard do its work, and waits for it.
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
	case <-ctx.Done(): // it goes on alone
		return fmt.Errorf("wait for the guard: %w", context.Cause(ctx))
	}
}

func (g *guardian) finish() {
	g.mu.Lock()
	err := g.in.Close()
	g.mu.Unlock()
	g.ended = errors.Join(err, g.cmd.Wait())
}

// sweeper ends processes that have left the group of an attempt, and have
// outlived it: else they would sit on a GPU for ever. To look through all
// processes of the machine costs too much to be done after each attempt, so it
// is done a while after the first of several.
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

// close leaves what is left to the guard.
func (s *sweeper) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.due != nil {
		s.due.Stop()
	}
}

// legacy is what a launcher leaves for its successor to end what is left of it,
// should it be killed.
type legacy struct {
	Cookie string `json:"cookie"`
	Engine string `json:"engine,omitempty"`
}

func legacyFile(dir string) string { return filepath.Join(dir, "launcher.json") }

// leave writes it. It is there before there is anything to end.
func (l legacy) leave(dir string) error {
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

// succeed ends what a killed predecessor has left running or lying.
func succeed(ctx context.Context, dir string) error {
	text, err := os.ReadFile(legacyFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var l legacy
	if json.Unmarshal(text, &l) == nil && l.Cookie != "" { // else it is of no use any more
		endAll(ctx, l)
	}
	return os.RemoveAll(filepath.Join(dir, workName))
}

// endAll ends every process and container that bears the cookie.
func endAll(ctx context.Context, l legacy) {
	endContainers(ctx, l.Engine, l.Cookie)
	for range sweepsAtMost {
		if sweep(l.Cookie, func(string, int) bool { return false }) == 0 {
			return
		}
	}
}

// sweepsAtMost bounds a chase after processes that start others.
const sweepsAtMost = 100
