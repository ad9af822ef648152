package chaos

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// fleet is a round's children. If a process ends without having been told to, the round has failed.
type fleet struct {
	dir  string
	addr string
	env  []string // environment in addition to that of every child
	seed uint64

	mu       sync.Mutex
	began    time.Time
	procs    map[string]*proc
	lives    map[string]int
	timeline []string
	kills    []hit
	failures []error
}

// hit is a SIGKILL of one life.
type hit struct {
	name string
	life int
	at   time.Time
}

type proc struct {
	name  string
	life  int
	cmd   *exec.Cmd
	stdin io.Closer
	log   *os.File
	told  bool          // whether the process was told to end
	gone  chan struct{} // closed when the process has ended
}

func newFleet(dir, addr string, seed uint64) *fleet {
	return &fleet{dir: dir, addr: addr, seed: seed, began: time.Now(), procs: map[string]*proc{}, lives: map[string]int{}}
}

func (f *fleet) note(format string, words ...any) {
	f.timeline = append(f.timeline, fmt.Sprintf("%6.2fs ", time.Since(f.began).Seconds())+fmt.Sprintf(format, words...))
}

func (f *fleet) start(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &proc{name: name, life: f.lives[name], gone: make(chan struct{})}
	f.lives[name]++
	log, err := os.Create(filepath.Join(f.dir, fmt.Sprintf("%s.%d.log", name, p.life)))
	if err != nil {
		return err
	}
	p.log, p.cmd = log, exec.Command(os.Args[0])
	p.cmd.Stderr, p.cmd.Stdout = log, log
	p.cmd.Env = append(os.Environ(), envName+"="+name, fmt.Sprintf("%s=%d", envLife, p.life), envDir+"="+f.dir,
		envAddr+"="+f.addr, fmt.Sprintf("%s=%d", envRand, f.seed*1000+uint64(p.life)))
	p.cmd.Env = append(p.cmd.Env, f.env...)
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	f.procs[name] = p
	f.note("start %s.%d", name, p.life)
	go f.watch(p)
	return nil
}

// watch waits for a process's end.
func (f *fleet) watch(p *proc) {
	err := p.cmd.Wait()
	p.stdin.Close()
	p.log.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("%s.%d ended: %v", p.name, p.life, err)
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !p.told || ok && status.Exited() && status.ExitStatus() != 0 {
		f.failures = append(f.failures, fmt.Errorf("%s.%d ended: %v; see its log", p.name, p.life, p.cmd.ProcessState))
	}
	close(p.gone)
}

// signal sends a process a signal, and returns a channel that is closed when the process has ended.
func (f *fleet) signal(name string, s syscall.Signal) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.procs[name]
	if p == nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	p.told = true
	f.note("%v to %s.%d", s, name, p.life)
	if s == syscall.SIGKILL {
		f.kills = append(f.kills, hit{name, p.life, time.Now()})
	}
	_ = p.cmd.Process.Signal(s)
	return p.gone
}

// pids are the running processes of a role.
func (f *fleet) pids(role string) (all []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, p := range f.procs {
		if strings.HasPrefix(name, role) && !isGone(p.gone) {
			all = append(all, p.cmd.Process.Pid)
		}
	}
	return all
}

func isGone(gone <-chan struct{}) bool {
	select {
	case <-gone:
		return true
	default:
		return false
	}
}

// hits are the SIGKILLs of a role's processes.
func (f *fleet) hits(role string) []hit {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []hit
	for _, h := range f.kills {
		if strings.HasPrefix(h.name, role) {
			all = append(all, h)
		}
	}
	return all
}

// strike ends a process as the blow says and starts it again.
func (f *fleet) strike(b blow) error {
	s := syscall.SIGKILL
	if b.polite {
		s = syscall.SIGTERM
	}
	gone := f.signal(b.target, s)
	back := time.NewTimer(b.back)
	defer back.Stop()
	<-back.C
	select {
	case <-gone:
	case <-time.After(stopLimit):
		return f.dumpIfStuck(b.target)
	}
	return f.start(b.target)
}

// dumpIfStuck makes a process that does not end write its goroutines to its log.
func (f *fleet) dumpIfStuck(name string) error {
	f.dump(name)
	return fmt.Errorf("%s does not end after SIGTERM; its log says where it hangs", name)
}

// dump makes a process write its goroutines to its log, and ends it.
func (f *fleet) dump(name string) {
	select {
	case <-f.signal(name, syscall.SIGQUIT):
	case <-time.After(5 * time.Second):
	}
}

// stopLimit is the longest time that a process may take to end after SIGTERM.
const stopLimit = 2 * time.Minute

// stop ends processes with SIGTERM and waits for them.
func (f *fleet) stop(names ...string) error {
	var all []<-chan struct{}
	for _, name := range names {
		all = append(all, f.signal(name, syscall.SIGTERM))
	}
	limit := time.After(stopLimit)
	for i, gone := range all {
		select {
		case <-gone:
		case <-limit:
			return f.dumpIfStuck(names[i])
		}
	}
	return nil
}

// killAll kills all processes.
func (f *fleet) killAll() {
	f.mu.Lock()
	var all []*proc
	for _, p := range f.procs {
		p.told = true
		_ = p.cmd.Process.Kill()
		all = append(all, p)
	}
	f.mu.Unlock()
	for _, p := range all {
		<-p.gone
	}
}

// story returns the timeline of the processes and their failures.
func (f *fleet) story() (timeline []string, failures []error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.timeline...), append([]error(nil), f.failures...)
}
