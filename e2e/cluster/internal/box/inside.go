//go:build linux

package box

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// The arguments with which the program starts itself: as a sandbox's first process, as its
// supervisor, or to test whether a sandbox is possible.
const (
	InitArgument = "sandbox-init"
	NodeArgument = "sandbox-node"
	TryArgument  = "sandbox-try"
)

// Try makes a sandbox's first mounts.
func Try() error {
	return own()
}

// Init is the sandbox's first process. It makes the supervisor's environment, starts the
// supervisor, and adopts processes that lose their parent.
func Init(planFile string) error {
	if _, err := io.ReadFull(os.NewFile(3, "pipe"), make([]byte, 1)); err != nil {
		return fmt.Errorf("wait for the sandbox's network: %w", err)
	}
	plan, err := readPlan(planFile)
	if err != nil {
		return err
	}
	if err := plan.world(); err != nil {
		return err
	}
	files := []uintptr{0, 1, 2}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{os.Args[0], NodeArgument, planFile},
		&syscall.ProcAttr{Env: os.Environ(), Files: files})
	if err != nil {
		return fmt.Errorf("start the sandbox's supervisor: %w", err)
	}
	return reap(pid)
}

// reap waits for every child that ends, until the given one does.
func reap(until int) error {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("wait for the sandbox's processes: %w", err)
		}
		if pid == until {
			return nil // it has written the reason
		}
	}
}

// world makes the sandbox's mounts, host name and network.
func (p Plan) world() error {
	steps := []func() error{
		own, p.folders, p.resolver, p.bindPrograms, p.sysctls, p.share, p.hostname, p.join, p.settings,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// own separates the mounts from this machine's, and shows only the sandbox's processes in /proc.
func own() error {
	if err := mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	return mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, "")
}

func (p Plan) folders() error {
	return errors.Join(
		mount(p.Place.lib(), "/var/lib", "", syscall.MS_BIND, ""),
		mount(p.Place.Log(), "/var/log", "", syscall.MS_BIND, ""),
		mount("tmpfs", "/run", "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=755"),
	)
}

// resolver makes the node's programs use the sandbox's name server, because this machine's cannot
// be reached from here, and a query would wait for long.
func (p Plan) resolver() error {
	const path = "/etc/resolv.conf"
	if exists(path) != nil {
		return nil // it links to a file that the sandbox does not have, so no server is asked
	}
	return mount(p.Place.Etc("resolv.conf"), path, "", syscall.MS_BIND, "")
}

// bindPrograms mounts the cache read-only at a fixed path.
func (p Plan) bindPrograms() error {
	if err := mount(p.Cache, p.Place.Programs(), "", syscall.MS_BIND, ""); err != nil {
		return err
	}
	return mount("", p.Place.Programs(), "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
}

// wanted are settings of the whole machine that a kubelet would change if they differed. The
// kubelet sees these values instead, and the machine's own do not change.
var wanted = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

func (p Plan) sysctls() error {
	for _, name := range []string{"vm", "kernel"} {
		dir := filepath.Join("/proc/sys", name)
		if err := mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
			return err
		}
		if err := mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			return err
		}
	}
	for name, value := range wanted {
		if err := p.pretend(name, value); err != nil {
			return err
		}
	}
	return nil
}

func (p Plan) pretend(name, value string) error {
	shown := p.Place.Etc("sysctl", name)
	if err := os.MkdirAll(filepath.Dir(shown), 0o755); err != nil {
		return fmt.Errorf("make the sandbox's settings: %w", err)
	}
	if err := os.WriteFile(shown, []byte(value+"\n"), 0o644); err != nil {
		return fmt.Errorf("make the sandbox's settings: %w", err)
	}
	return mount(shown, filepath.Join("/proc/sys", name), "", syscall.MS_BIND, "")
}

// share propagates mounts to pods and back, within the sandbox.
func (p Plan) share() error { return mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, "") }

func (p Plan) hostname() error {
	if err := syscall.Sethostname([]byte(p.Place.Name)); err != nil {
		return fmt.Errorf("name the sandbox: %w", err)
	}
	return nil
}

func (p Plan) join() error { return p.Subnet.join() }

// settings changes the settings of the sandbox's own network.
func (p Plan) settings() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return fmt.Errorf("let the sandbox forward: %w", err)
	}
	// Without it, a pod that calls a Service with a pod on the same bridge gets the answer from the
	// wrong address. If the kernel has no bridge filter, there is nothing to set.
	err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("1"), 0o644)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("let the sandbox's bridge be filtered: %w", err)
	}
	return nil
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := syscall.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, target, err)
	}
	return nil
}

func exists(path string) error {
	_, err := os.Stat(path)
	return err
}
