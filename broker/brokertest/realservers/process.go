package realservers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
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

// Ports below those that kernels give to outgoing connections: a server that
// is down for a restart finds its port free again. They are given out in blocks.
// Whoever has a block listens at its first port, so that of two test programs
// beside each other none chooses what the other has chosen, and is yet to use.
const (
	firstPort = 20000
	blocks    = 750
	blockSize = 16
)

// ports are some of a block, for as long as it is held.
type ports struct {
	all  []int
	held net.Listener
}

// takePorts takes n ports of an address of this machine that nobody listens on.
func takePorts(host string, n int) (*ports, error) {
	if n >= blockSize {
		return nil, fmt.Errorf("find free ports: %d are more than a block has", n)
	}
	for range 1000 {
		first := firstPort + rand.IntN(blocks)*blockSize
		l, err := net.Listen("tcp", at(host, first))
		if err != nil {
			continue
		}
		p := &ports{held: l}
		for len(p.all) < n && free(host, first+1+len(p.all)) {
			p.all = append(p.all, first+1+len(p.all))
		}
		if len(p.all) == n {
			return p, nil
		}
		if err := p.release(); err != nil {
			return nil, fmt.Errorf("find free ports: %w", err)
		}
	}
	return nil, errors.New("find free ports: 1000 tries failed on " + host + fmt.Sprint(" between ", firstPort, " and ", firstPort+blocks*blockSize))
}

func free(host string, port int) bool {
	l, err := net.Listen("tcp", at(host, port))
	return err == nil && l.Close() == nil
}

// release lets others have the block. Nobody has nothing to release.
func (p *ports) release() error {
	if p == nil {
		return nil
	}
	return p.held.Close()
}

// loopback is where servers listen unless a test says otherwise.
const loopback = "127.0.0.1"

func at(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
