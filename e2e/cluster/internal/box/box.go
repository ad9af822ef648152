//go:build linux

// Package box is the sandbox: its namespaces, mounts, cgroups and veth pair, and the programs that
// run in it. Its first process is this program again. The kernel kills everything in the sandbox
// with that process, and kills that process when the process that keeps the sandbox ends.
package box

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// Box is a sandbox that this process keeps.
type Box struct {
	Place
	Subnet

	cgroups hierarchies
	lock    *os.File
	cmd     *exec.Cmd
	ended   chan struct{}
	err     error // error of its first process; to be read after ended
}

// Open takes the name, removes the remains of a killed sandbox, and makes the folders and cgroups.
// Nothing runs yet, because the configurations must be written first.
func Open(name, subnet string) (*Box, error) {
	place, err := PlaceOf(name)
	if err != nil {
		return nil, err
	}
	held, err := lock(name, false)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("open the sandbox %s: one of this name is running; end it with `down --name %s` or take another name", name, name)
	}
	if err != nil {
		return nil, err
	}
	b := &Box{Place: place, lock: held, ended: make(chan struct{})}
	if err := b.prepare(subnet); err != nil {
		return nil, errors.Join(err, b.clear(), unlock(held))
	}
	return b, nil
}

func (b *Box) prepare(subnet string) (err error) {
	if b.cgroups, err = findHierarchies(); err != nil {
		return err
	}
	if err := clear(b.Place, b.cgroups); err != nil {
		return err
	}
	if err := os.RemoveAll(b.Kept()); err != nil {
		return fmt.Errorf("remove the logs of the sandbox before: %w", err)
	}
	if err := b.Place.make(); err != nil {
		return err
	}
	if b.Subnet, err = b.takeSubnet(subnet); err != nil {
		return err
	}
	return b.cgroups.make(b.Cgroup())
}

// Start runs the plan in the sandbox. The sandbox has the programs at Place.Programs.
func (b *Box) Start(plan Plan) error {
	plan.Place, plan.Subnet = b.Place, b.Subnet
	if err := plan.write(b.plan()); err != nil {
		return err
	}
	in, out, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe to the sandbox: %w", err)
	}
	defer out.Close()
	if err := b.clone(in); err != nil {
		return err
	}
	if err := b.remember(); err != nil {
		return err
	}
	if err := b.connect(b.cmd.Process.Pid); err != nil {
		return err
	}
	if _, err := out.Write([]byte{1}); err != nil {
		return fmt.Errorf("let the sandbox go on: %w", err)
	}
	return nil
}

// clone starts the sandbox's first process, which waits at the pipe for its network. The thread
// that starts it must live on, because the kernel takes the thread's end for the parent's.
func (b *Box) clone(pipe *os.File) error {
	defer pipe.Close()
	b.cmd = exec.Command("/proc/self/exe", InitArgument, b.plan())
	b.cmd.Stdout, b.cmd.Stderr = os.Stderr, os.Stderr
	b.cmd.ExtraFiles = []*os.File{pipe}
	b.cmd.SysProcAttr = namespaces()
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := b.cmd.Start()
		started <- err
		if err == nil {
			b.err = b.cmd.Wait()
			close(b.ended)
		}
	}()
	if err := <-started; err != nil {
		b.cmd = nil
		return fmt.Errorf("start the sandbox's first process: %w", err)
	}
	return nil
}

func namespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true, // Ctrl-C in the terminal reaches only the process that keeps the sandbox
	}
}

func (b *Box) remember() error {
	pid := b.cmd.Process.Pid
	started, err := startOf(pid)
	if err != nil {
		return err
	}
	return b.write(record{Up: os.Getpid(), Init: pid, Started: started})
}

// Ended is closed when the sandbox has ended.
func (b *Box) Ended() <-chan struct{} { return b.ended }

// Verdict returns why the sandbox ended by itself. Call it after Ended.
func (b *Box) Verdict() error {
	if said, err := os.ReadFile(b.verdict()); err == nil {
		return fmt.Errorf("%s", said)
	}
	return fmt.Errorf("the sandbox's first process ended, without a reason: %w", errors.Join(b.err, errors.New("was it killed?")))
}

// Inside returns this machine's path of a file in the sandbox, while the sandbox runs.
func (b *Box) Inside(path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", b.cmd.Process.Pid), path)
}

// Close kills everything in the sandbox, and removes its files and cgroups. After a failure its
// logs stay.
func (b *Box) Close(failed bool) error {
	if b.cmd != nil {
		if err := b.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("kill the sandbox: %w", err)
		}
		<-b.ended
	}
	var kept error
	if failed {
		kept = os.Rename(b.Log(), b.Kept())
	}
	return errors.Join(kept, b.clear(), unlock(b.lock))
}

func (b *Box) clear() error { return clear(b.Place, b.cgroups) }

// Down ends the sandbox of the name if it runs, and removes its rest.
func Down(name string) error {
	place, err := PlaceOf(name)
	if err != nil {
		return err
	}
	if r, err := place.read(); err == nil {
		if err := syscall.Kill(r.Up, syscall.SIGTERM); err != nil && err != syscall.ESRCH {
			return fmt.Errorf("ask process %d to end the sandbox %s: %w", r.Up, name, err)
		}
		if err := gone(r.Init, r.Started, patience); err != nil {
			return err
		}
	}
	held, err := lock(name, true)
	if err != nil {
		return fmt.Errorf("wait for the sandbox %s to end: %w", name, err)
	}
	cgroups, err := findHierarchies()
	if err == nil {
		err = errors.Join(clear(place, cgroups), os.RemoveAll(place.Kept()))
	}
	return errors.Join(err, unlock(held))
}

// clear removes the sandbox's things outside of its namespaces. Those inside ended with its first
// process.
func clear(place Place, cgroups hierarchies) error {
	if r, err := place.read(); err == nil {
		if err := gone(r.Init, r.Started, patience); err != nil {
			return err
		}
	}
	if err := disconnect(place.Name); err != nil {
		return err
	}
	if err := cgroups.remove(place.Cgroup()); err != nil {
		return err
	}
	if err := os.RemoveAll(place.Dir); err != nil {
		return fmt.Errorf("remove the sandbox's folder: %w", err)
	}
	return nil
}
