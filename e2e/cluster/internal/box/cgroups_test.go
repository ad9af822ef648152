//go:build linux

package box

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	versionOne = `tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/devices cgroup rw,devices 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,xattr,name=systemd 0 0
cgroup /mnt/again cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/rdma cgroup rw,rdma 0 0
`
	besideIt   = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
	versionTwo = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
)

func TestHierarchies(t *testing.T) {
	one := []string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuset", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/devices", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/systemd"}
	for _, c := range []struct {
		name, mounts string
		want         hierarchies
		complaint    string
	}{
		{"version 1", versionOne, hierarchies{Dirs: one}, ""},
		{"both", versionOne + besideIt, hierarchies{Dirs: append(slices.Clone(one), "/sys/fs/cgroup/unified")}, ""},
		{"version 2", "proc /proc proc rw 0 0\n" + versionTwo, hierarchies{Two: true, Dirs: []string{"/sys/fs/cgroup"}}, ""},
		{"none", "proc /proc proc rw 0 0\n", hierarchies{}, "neither version"},
		{"half of version 1", "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n", hierarchies{Dirs: []string{"/sys/fs/cgroup/memory"}}, "cpu, cpuacct, cpuset, devices, pids"},
	} {
		got, err := hierarchiesIn([]byte(c.mounts))
		if got.Two != c.want.Two || !slices.Equal(got.Dirs, c.want.Dirs) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		if (err == nil) != (c.complaint == "") || err != nil && !strings.Contains(err.Error(), c.complaint) {
			t.Errorf("%s: the error is %v, want one with %q", c.name, err, c.complaint)
		}
	}
}

// TestGroupsOnFolders makes and removes the groups on plain folders, which act like cgroups except
// for the kernel's files.
func TestGroupsOnFolders(t *testing.T) {
	mount := t.TempDir()
	for name, value := range map[string]string{"cpuset.cpus": "0-1\n", "cpuset.mems": "0\n"} {
		if err := os.WriteFile(filepath.Join(mount, name), []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := hierarchies{Dirs: []string{mount}}
	if err := h.make("group"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(mount, "group", "cpuset.cpus")); string(got) != "0-1\n" {
		t.Errorf("the new cpuset has %q, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(mount, "group", "cpu.shares"), []byte("1024"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := h.make("group"); err != nil { // it exists, with the kernel's file
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(mount, "group", "cpu.shares")); string(got) != "10240" {
		t.Errorf("its share is %q, %v", got, err)
	}
	if err := removeTree(filepath.Join(mount, "group", "not-there"), 0); err != nil {
		t.Error(err)
	}
	deep := filepath.Join(mount, "other", "pods", "pod")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := (hierarchies{Dirs: []string{mount}}).remove("other"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(mount, "other")); err == nil {
		t.Error("the group is still there")
	}
}

func TestGroupThatIsInUseIsReported(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "group")
	if err := os.MkdirAll(filepath.Join(dir, "held"), 0o755); err != nil {
		t.Fatal(err)
	}
	// A file keeps a folder from being removed, like a process keeps a group.
	if err := os.WriteFile(filepath.Join(dir, "held", "process"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := removeTree(dir, time.Millisecond); err == nil {
		t.Error("nobody says that the group is in use")
	}
}
