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
	readyIn    = 5 * time.Minute
	askEvery   = 25 * time.Millisecond
	tailBytes  = 2000
)

// process is a server that we started. The process can be started again after it ended.
type process struct {
	args []string
	dir  string // working folder
	log  string // file to which its output is appended

	cmd   *exec.Cmd
	ended chan struct{}
}

// start starts the process from a thread that lives as long as the process. If the kernel can end a
// child with its parent, the parent is that thread.
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
			_ = cmd.Wait() // the log says how the process ended
		}
		_ = out.Close() // only the child writes to it
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

// stop sends SIGTERM to the process and waits; if the process does not end, stop kills it.
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
			p.cmd.Process.Pid, stopWithin, p.logTail()), p.kill())
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

// waitReady calls ask repeatedly until ask returns no error, the process has ended, the context is
// done, or the time is up.
func (p *process) waitReady(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyIn)
	defer cancel()
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
			return fmt.Errorf("%s ended: %s", p.args[0], p.logTail())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w; its log ends: %s", p.args[0], err, p.logTail())
		}
	}
}

// logTail returns the end of the log.
func (p *process) logTail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(b[max(0, len(b)-tailBytes):]))
}

// These ports are below those that kernels give to outgoing connections, so a server finds its port
// free again after a restart. Ports are allocated in blocks. The owner of a block listens on its
// first port, so two test programs never choose the same ports, even before they use the ports.
const (
	firstPort = 20000
	blocks    = 750
	blockSize = 16
)

// ports are some ports of a block. The block is reserved until release.
type ports struct {
	all  []int
	held net.Listener
}

// takePorts reserves n ports of an address of this machine that are not in use.
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

// release frees the block. A nil receiver is allowed.
func (p *ports) release() error {
	if p == nil {
		return nil
	}
	return p.held.Close()
}

// loopback is the default address of servers.
const loopback = "127.0.0.1"

func at(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
