//go:build real && linux

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tidemill.dev"
)

// smallDisk mounts a file system in memory, and returns its folder.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a file system of its own needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fillDisk writes a file that leaves some bytes of a disk, and returns its name.
func fillDisk(t *testing.T, dir string, left int64) string {
	t.Helper()
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		t.Fatal(err)
	}
	return leave(t, strings.Repeat("x", int(int64(disk.Bavail)*disk.Bsize-left)), dir, "filler")
}

// The disk of Kafka is full: commands say so and name the folder, and work again when there is room.
func TestRealFullDisks(t *testing.T) {
	disk := smallDisk(t, "64m")
	dir, file := runsFolder(t, runsConfig)
	r := runsAt{t, filepath.Join(disk, "data")}
	startUp(t, r.data, "-f", file)
	filler := fillDisk(t, disk, 1<<20)
	event := `{"specversion":"1.0","id":"1","source":"/x","type":"a"}`
	for _, args := range []string{"publish --file -", "publish a", "runs start intent --key bot-1", "data put d " + filepath.Join(dir, "trainer")} {
		// The gateway's answer about the disk may be a moment old.
		eventually(t, func() bool {
			o := call(t, event, append(strings.Fields(args), "--data", r.data)...)
			return o.code == exitFailed && strings.Contains(o.err, "disk full: ") && strings.Contains(o.err, " KiB are left in "+r.data)
		})
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return call(t, event, "publish", "--file", "-", "--data", r.data).code == 0 })
	r.ok("runs", "start", "intent", "--key", "bot-1")
	r.is("bot-1", tidemill.RunSucceeded)
}

// The disk of the store is full, and Kafka's is not.
func TestRealFullStores(t *testing.T) {
	disk := smallDisk(t, "8m")
	dir, file := runsFolder(t, runsConfig)
	r := runsAt{t, filepath.Join(dir, "data")}
	startUp(t, r.data, "-f", file, "--store", "file://"+disk)
	filler, large := fillDisk(t, disk, 64<<10), leave(t, strings.Repeat("large", 100_000), dir, "large")
	o := r.call("data", "put", "d", large)
	mention(t, "a put", o.err, "disk full: the store's folder "+disk+" has no room left on its disk")
	if o.code != exitFailed || strings.Contains(o.err, "tried for") {
		t.Errorf("exit %d, %s", o.code, o.err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	r.ok("data", "put", "d", large)
}
