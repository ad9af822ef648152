package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// The roles in which this program starts itself.
const (
	roleServe   = "serve"
	roleClient  = "client"
	roleBare    = "bare"
	roleGateway = "gateway"
	roleLoad    = "load"
	roleLap     = "lap"
	rolePoster  = "poster"

	roleDispatcher = "dispatcher"

	roleLaptop = "laptop"

	roleScorer = "scorer"
	roleInfer  = "infer"
	roleCache  = "cache"

	roleInference = "inference-server"
)

// childProcess is a process that lives until its standard input closes. It answers each line with a
// line.
type childProcess struct {
	what    string
	cmd     *exec.Cmd
	told    io.WriteCloser
	answers *bufio.Reader
}

// startChild also returns the child's first line, by which the child reports that it is ready. In
// production the broker and the generator run on other machines. Here each child gets half of the
// cores, because a child's idle threads spin and would cost the measured servers more than its
// work.
func startChild(ctx context.Context, program []string, args ...string) (*childProcess, string, error) {
	c := &childProcess{what: program[len(program)-1], cmd: exec.CommandContext(ctx, program[0], append(program[1:], args...)...)}
	c.cmd.Stderr = os.Stderr
	if c.what == roleServe || c.what == roleLoad || c.what == roleLap {
		c.cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", max(1, runtime.NumCPU()/2)))
	}
	var err error
	if c.told, err = c.cmd.StdinPipe(); err != nil {
		return nil, "", err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	c.answers = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, "", fmt.Errorf("start %s: %w", c.what, err)
	}
	line, err := c.answers.ReadString('\n')
	if err != nil {
		return nil, "", errors.Join(fmt.Errorf("start %s: it said nothing: %w", c.what, err), c.stop())
	}
	return c, strings.TrimSpace(line), nil
}

func (c *childProcess) ask(what string) (string, error) {
	if _, err := fmt.Fprintln(c.told, what); err != nil {
		return "", fmt.Errorf("tell %s to %s: %w", c.what, what, err)
	}
	line, err := c.answers.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s does not %s: %w", c.what, what, err)
	}
	return line, nil
}

// kill ends the process as a crash does.
func (c *childProcess) kill() error {
	err := c.cmd.Process.Kill()
	_ = c.cmd.Wait() // Wait's error only reports the kill
	return err
}

func (c *childProcess) stop() error {
	c.told.Close()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("stop %s: %w", c.what, err)
	}
	return nil
}
