//go:build linux

package box

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// hierarchies are the places where a kubelet needs its own folder.
type hierarchies struct {
	Two  bool     // cgroup v2, with its one hierarchy
	Dirs []string // mount points, each with all its controllers
}

// controllers are those in which a kubelet on cgroup v1 makes folders.
var controllers = []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "hugetlb", "net_cls", "net_prio", "perf_event", "name=systemd"}

// needed are the controllers without which a kubelet does not start.
var needed = []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "pids"}

// hierarchiesIn reads /proc/self/mounts. A machine with both versions counts as version 1, because
// that one has the controllers.
func hierarchiesIn(mounts []byte) (hierarchies, error) {
	var one hierarchies
	var two string
	seen := make(map[string]bool)
	lines := bufio.NewScanner(bytes.NewReader(mounts))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 {
			continue
		}
		switch dir, kind := fields[1], fields[2]; kind {
		case "cgroup2":
			two = dir
		case "cgroup":
			here := ours(fields[3], seen)
			if here {
				one.Dirs = append(one.Dirs, dir)
			}
		}
	}
	if seen["memory"] {
		if two != "" { // next to version 1 it has no controllers, but runc makes folders there too
			one.Dirs = append(one.Dirs, two)
		}
		return one, missing(seen)
	}
	if two == "" {
		return hierarchies{}, errors.New("find cgroups: neither version is mounted in /sys/fs/cgroup; a kubelet cannot run without")
	}
	return hierarchies{Two: true, Dirs: []string{two}}, nil
}

// ours notes a mount's controllers, and reports whether it has one that is not mounted elsewhere.
func ours(options string, seen map[string]bool) bool {
	found := false
	for option := range strings.SplitSeq(options, ",") {
		if slices.Contains(controllers, option) && !seen[option] {
			seen[option] = true
			found = true
		}
	}
	return found
}

func missing(seen map[string]bool) error {
	var lacking []string
	for _, name := range needed {
		if !seen[name] {
			lacking = append(lacking, name)
		}
	}
	if lacking != nil {
		return fmt.Errorf("find cgroups: version 1 is mounted, but not its %s; a kubelet cannot run without", strings.Join(lacking, ", "))
	}
	return nil
}

func findHierarchies() (hierarchies, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return hierarchies{}, fmt.Errorf("find cgroups: %w", err)
	}
	return hierarchiesIn(mounts)
}

// Cgroup is the sandbox's folder in each hierarchy. It has no process of ours: the kubelet makes
// the pods' groups below it.
func (p Place) Cgroup() string { return "tidemill-" + p.Name }

func (h hierarchies) make(group string) error {
	for _, mount := range h.Dirs {
		if h.Two {
			if err := delegate(mount); err != nil {
				return err
			}
		}
		dir := filepath.Join(mount, group)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make a cgroup: %w; this needs a root that may write to cgroups", err)
		}
		if err := errors.Join(inherit(mount, dir), weigh(dir)); err != nil {
			return err
		}
	}
	return nil
}

// weigh gives a sandbox ten times the CPU share of every other group and, on version 1, of every
// program without a group. On a separate node all pods together get at least half of the CPU. Here,
// next to a compiler's processes, they would get the share of one process.
func weigh(dir string) error {
	for name, value := range map[string]string{"cpu.shares": "10240", "cpu.weight": "1000"} {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil {
			return fmt.Errorf("give a cgroup its share of the processors: %w", err)
		}
	}
	return nil
}

// delegate enables the root's controllers for the groups below it. Most machines have that already.
func delegate(mount string) error {
	have, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("read the controllers of cgroup v2: %w", err)
	}
	file := filepath.Join(mount, "cgroup.subtree_control")
	on, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the controllers of cgroup v2: %w", err)
	}
	for name := range strings.FieldsSeq(string(have)) {
		if slices.Contains(strings.Fields(string(on)), name) {
			continue
		}
		if err := os.WriteFile(file, []byte("+"+name), 0o644); err != nil {
			return fmt.Errorf("let cgroups below %s have %s: %w; inside a container, move its processes to a group of their own first", mount, name, err)
		}
	}
	return nil
}

// inherit copies the parent's values to a new cpuset. On version 1 the kernel leaves a new cpuset
// empty, and nothing can run in an empty one.
func inherit(parent, dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		if _, err := os.Stat(filepath.Join(parent, "cgroup.controllers")); err == nil {
			return nil // version 2 inherits by itself
		}
		value, err := os.ReadFile(filepath.Join(parent, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), value, 0o644)
		}
		if err != nil {
			return fmt.Errorf("fill a new cpuset: %w", err)
		}
	}
	return nil
}

// remove removes the sandbox's groups, the deepest first. Their processes have ended, but the
// kernel may need a while to notice.
func (h hierarchies) remove(group string) error {
	var errs []error
	for _, mount := range h.Dirs {
		errs = append(errs, removeTree(filepath.Join(mount, group), patience))
	}
	return errors.Join(errs...)
}

func removeTree(dir string, patience time.Duration) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("look for cgroups of the sandbox: %w", err)
	}
	slices.Reverse(dirs)
	for _, dir := range dirs {
		if err := removeGroup(dir, patience); err != nil {
			return err
		}
	}
	return nil
}

func removeGroup(dir string, patience time.Duration) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove a cgroup: %w", err)
		}
	}
}
