package realservers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

const (
	stopWithin = 2 * time.Minute
	askEvery   = 25 * time.Millisecond
	tailBytes  = 2000
)

// process is a server that we started. It can be started again after its end.
type process struct {
	args []string
	dir  string // its working folder
	log  string // file that its output is appended to

	cmd   *exec.Cmd
	ended chan struct{}
}

// start starts the process from a thread that lives as long as it does: where
// the kernel can end a child with its parent, the parent is that thread.
func (p *process) start() error {
	if p.running() {
		return fmt.Errorf("start %s: it is running, as process %d", p.args[0], p.cmd.Process.Pid)
	}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", p.args[0], err)
	}
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, out, out
	endWithParent(cmd)
	ended, started := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log
		}
		_ = out.Close() // written by the child alone
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w; run .ci/real-servers-install", p.args[0], err)
	}
	p.cmd, p.ended = cmd, ended
	return nil
}

func (p *process) running() bool {
	if p.ended == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// stop asks the process to end and waits; it kills one that does not.
func (p *process) stop() error {
	if !p.running() {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop process %d: %w", p.cmd.Process.Pid, err)
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopWithin):
		return errors.Join(fmt.Errorf("process %d did not stop within %v and was killed: %s",
			p.cmd.Process.Pid, stopWithin, p.tail()), p.kill())
	}
}

func (p *process) kill() error {
	if !p.running() {
		return nil
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", p.cmd.Process.Pid, err)
	}
	<-p.ended
	return nil
}

// until asks again and again until there is no error, the process has ended or
// the context is done.
func (p *process) until(ctx context.Context, ask func(context.Context) error) error {
	t := time.NewTicker(askEvery)
	defer t.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-t.C:
		case <-p.ended:
			return fmt.Errorf("%s ended: %s", p.args[0], p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w; its log ends: %s", p.args[0], err, p.tail())
		}
	}
}

// tail is the end of the log.
func (p *process) tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(b[max(0, len(b)-tailBytes):]))
}
