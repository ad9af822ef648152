package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// pinnedProcess is a program of any origin that runs on some of the cores until it is stopped.
type pinnedProcess struct {
	cmd    *exec.Cmd
	input  io.Closer
	output tailWriter
	ended  chan struct{}
	once   sync.Once
}

// startPinned starts a command on the cores from first to last, with util-linux's taskset. The
// program gets a standard input that stays open until stop.
func startPinned(command []string, first, last int) (*pinnedProcess, error) {
	if _, err := exec.LookPath("taskset"); err != nil {
		return nil, fmt.Errorf("start %s on its own cores: %w; install util-linux", command[0], err)
	}
	p := &pinnedProcess{cmd: exec.Command("taskset", append([]string{"-c", coreList(first, last)}, command...)...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.input = in
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	go func() {
		_ = p.cmd.Wait() // its output says why it ended
		close(p.ended)
	}()
	return p, nil
}

// pinProcess moves a running process with all its threads to the cores from first to last.
func pinProcess(ctx context.Context, pid, first, last int) error {
	said, err := exec.CommandContext(ctx, "taskset", "-a", "-p", "-c", coreList(first, last), strconv.Itoa(pid)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("move process %d to the cores %s: %w: %s; install util-linux", pid, coreList(first, last), err, said)
	}
	return nil
}

func (p *pinnedProcess) pid() int { return p.cmd.Process.Pid }

// said returns the end of what the program has printed.
func (p *pinnedProcess) said() string { return p.output.String() }

// stopWithin is the time after which a program that does not stop is killed.
const stopWithin = 20 * time.Second

// stop ends the program. A program of ours ends with its standard input, others with the signal.
func (p *pinnedProcess) stop() {
	p.once.Do(func() {
		p.input.Close()
		_ = p.cmd.Process.Signal(os.Interrupt) // fails only if the process has ended
		select {
		case <-p.ended:
		case <-time.After(stopWithin):
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	})
}

// tailBytes is how much of a program's output is kept.
const tailBytes = 2000

// tailWriter keeps the end of what is written to it.
type tailWriter struct {
	mu  sync.Mutex
	end []byte
}

func (t *tailWriter) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	t.end = bytes.Clone(t.end[max(0, len(t.end)-tailBytes):])
	return len(b), nil
}

func (t *tailWriter) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.end))
}
