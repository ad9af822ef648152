package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"sync"
)

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
