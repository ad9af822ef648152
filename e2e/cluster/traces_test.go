//go:build linux

package main

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tidemill.dev/e2e/cluster/internal/box"
)

// TestSandboxLeavesNothing starts sandboxes, ends them in each possible way, and compares the
// machine's state before and after.
func TestSandboxLeavesNothing(t *testing.T) {
	r := newRig(t)
	const name = "traces"
	before := tracesOf(t, name)
	if len(before) > 0 {
		t.Fatalf("a sandbox %s is there already: %v; end it with `down --name %s`", name, before, name)
	}
	t.Run("its standard input closes", func(t *testing.T) {
		u := r.up(t, name, "--bare")
		leavesTraces(t, name)
		check(t, u.stdin.Close())
		check(t, u.cmd.Wait())
		leavesNothing(t, name)
	})
	t.Run("a component ends", func(t *testing.T) {
		u := r.up(t, name, "--bare")
		r.command("enter", "--name", name, "--", "sh", "-c", killCoreDNS).Run() // it may end with the sandbox
		err := u.cmd.Wait()
		if said := u.said.String(); err == nil || !strings.Contains(said, "coredns ended: signal: killed") || !strings.Contains(said, "/"+name+".log") {
			t.Errorf("up ends with %v and says\n%s", err, said)
		}
		must(t, r.command("down", "--name", name)) // removes the logs
		leavesNothing(t, name)
	})
	t.Run("it is killed, and down clears up", func(t *testing.T) {
		r.killed(t, name)
		must(t, r.command("down", "--name", name))
		leavesNothing(t, name)
	})
	t.Run("it is killed, and the next up clears up", func(t *testing.T) {
		r.killed(t, name)
		u := r.up(t, name, "--bare")
		check(t, u.cmd.Process.Signal(os.Interrupt))
		check(t, u.cmd.Wait())
		leavesNothing(t, name)
	})
}

// killCoreDNS needs no tool that the machine may lack, and does not match itself.
const killCoreDNS = `for p in /proc/[0-9]*; do case "$(tr '\0' ' ' <$p/cmdline)" in */bin/core[d]ns*) kill -9 ${p#/proc/};; esac; done`

// killed starts a sandbox and kills the process that keeps it. Everything in it dies too.
func (r rig) killed(t *testing.T, name string) {
	t.Helper()
	u := r.up(t, name, "--bare")
	namespace := pidNamespace(t, name)
	check(t, u.cmd.Process.Kill())
	u.cmd.Wait()
	check(t, until(within(t), func() error { return emptied(namespace) }))
}

// tracesOf lists the traces of a sandbox on the machine.
func tracesOf(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	mounts, err := os.ReadFile("/proc/self/mounts")
	check(t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/tidemill-cluster/"+name) {
			found = append(found, "mount "+line)
		}
	}
	links, err := net.Interfaces()
	check(t, err)
	for _, link := range links {
		if strings.HasSuffix(link.Name, "-"+name) {
			found = append(found, "link "+link.Name)
		}
	}
	place, err := box.PlaceOf(name)
	check(t, err)
	for _, pattern := range []string{"/sys/fs/cgroup/*/" + place.Cgroup(), "/sys/fs/cgroup/" + place.Cgroup(), place.Dir, place.Dir + ".*"} {
		files, err := filepath.Glob(pattern)
		check(t, err)
		found = append(found, files...)
	}
	return append(found, processesOf(t, place.Dir)...)
}

// processesOf lists the processes that were started with a path of the sandbox, like all its
// components and pods' shims.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	check(t, err)
	var found []string
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && strings.Contains(string(line), dir) {
			found = append(found, "process "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

func leavesTraces(t *testing.T, name string) {
	t.Helper()
	found := strings.Join(tracesOf(t, name), "\n")
	for _, kind := range []string{"link ", "/sys/fs/cgroup/", "/var/tmp/", "process "} {
		if !strings.Contains(found, kind) {
			t.Errorf("a running sandbox shows no %q: this test would not see what it leaves\n%s", kind, found)
		}
	}
}

func leavesNothing(t *testing.T, name string) {
	t.Helper()
	if found := tracesOf(t, name); len(found) > 0 {
		t.Errorf("the sandbox left:\n%s", strings.Join(found, "\n"))
	}
}

// pidNamespace returns the namespace of the sandbox's processes.
func pidNamespace(t *testing.T, name string) string {
	t.Helper()
	place, err := box.PlaceOf(name)
	check(t, err)
	enter, err := place.Enter()
	check(t, err)
	pid := enter[slices.Index(enter, "--target")+1]
	if _, err := strconv.Atoi(pid); err != nil {
		t.Fatal(err)
	}
	namespace, err := os.Readlink("/proc/" + pid + "/ns/pid")
	check(t, err)
	return namespace
}

// emptied returns an error while a process of the namespace runs.
func emptied(namespace string) error {
	links, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	if err != nil {
		return err
	}
	for _, link := range links {
		if its, err := os.Readlink(link); err == nil && its == namespace {
			return &os.PathError{Op: "wait for the end of", Path: link, Err: os.ErrExist}
		}
	}
	return nil
}
