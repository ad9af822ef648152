package agent

import (
	"context"
	"fmt"
	"io"
	"os/exec"
)

// exitStatus is the error of a played command that has not succeeded.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// play plays a command. Its pipes are in memory, because a goroutine that reads a pipe of the
// operating system keeps virtual time from moving.
func play(script func(killed, asked context.Context, cmd *exec.Cmd) int, cmd *exec.Cmd, log *logbook, echo func(string, []byte)) *child {
	killed, end := context.WithCancel(context.Background())
	asked, ask := context.WithCancel(killed)
	c := &child{cmd: cmd, log: log, exited: make(chan struct{}), ask: ask, echo: echo}
	out, stopOut := c.plugInMemory(stdout)
	errs, stopErrs := c.plugInMemory(stderr)
	c.end = func() { end(); stopOut(); stopErrs() }
	cmd.Stdout, cmd.Stderr = out, errs
	go func() {
		if exit := script(killed, asked, cmd); exit != 0 {
			c.err = exitStatus(exit)
		}
		c.end()
		close(c.exited)
	}()
	return c
}

func (c *child) plugInMemory(stream string) (io.Writer, func()) {
	r, w := io.Pipe()
	c.reads.Go(func() { _ = c.log.copyStream(stream, r, c.echo) }) // never fails
	return w, func() { _ = w.Close() }                             // never fails
}
