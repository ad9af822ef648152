//go:build linux

package box

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
)

// root is the folder of running sandboxes. It is not below /run, /var/lib or /var/log, which a
// sandbox replaces, nor below /tmp, which may be memory.
const root = "/var/tmp/tidemill-cluster"

// Place is the folder of one sandbox. It has all its files, so that removing the folder removes
// them.
type Place struct {
	Name string
	Dir  string
}

var names = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`)

// PlaceOf returns the place of a sandbox by its name.
func PlaceOf(name string) (Place, error) {
	if !names.MatchString(name) {
		return Place{}, fmt.Errorf("take %q as a sandbox's name: use at most 40 small letters, digits and hyphens, a letter first", name)
	}
	return Place{Name: name, Dir: filepath.Join(root, name)}, nil
}

// Etc has keys, kubeconfigs and the configuration of components.
func (p Place) Etc(names ...string) string { return p.in("etc", names) }

// Programs is the folder of the binaries in the sandbox.
func (p Place) Programs(names ...string) string { return p.in("programs", names) }

// Log is the sandbox's /var/log, with one file per component.
func (p Place) Log(names ...string) string { return p.in("log", names) }

// Kubeconfig is the administrator's kubeconfig.
func (p Place) Kubeconfig() string { return p.in("kubeconfig", nil) }

func (p Place) lib() string    { return p.in("lib", nil) }
func (p Place) record() string { return p.in("sandbox.json", nil) }
func (p Place) plan() string   { return p.in("plan.json", nil) }
func (p Place) verdict() string {
	return p.in("ended", nil)
}

// Kept is the folder for the logs of a failed sandbox. They stay until the next sandbox of the same
// name.
func (p Place) Kept() string { return p.Dir + ".log" }

func (p Place) in(folder string, names []string) string {
	return filepath.Join(append([]string{p.Dir, folder}, names...)...)
}

func (p Place) make() error {
	for _, dir := range []string{p.lib(), p.Log(), p.Etc(), p.Programs()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make a folder for the sandbox: %w", err)
		}
	}
	return nil
}

// record has the data about a running sandbox that `down`, `enter` and `images` need.
type record struct {
	Up      int    `json:"up"`      // process that keeps it
	Init    int    `json:"init"`    // its first process
	Started string `json:"started"` // start of that process in ticks, because process numbers are reused
}

func (p Place) write(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write down the sandbox: %w", err)
	}
	if err := os.WriteFile(p.record(), data, 0o644); err != nil {
		return fmt.Errorf("write down the sandbox: %w", err)
	}
	return nil
}

// ErrNone means that no sandbox of the name runs.
var ErrNone = errors.New("no such sandbox is running")

func (p Place) read() (record, error) {
	var r record
	data, err := os.ReadFile(p.record())
	if errors.Is(err, os.ErrNotExist) {
		return r, fmt.Errorf("find the sandbox %s: %w", p.Name, ErrNone)
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read %s: %w", p.record(), err)
	}
	if started, err := startOf(r.Init); err != nil || started != r.Started {
		return r, fmt.Errorf("find the sandbox %s: %w; `down --name %s` removes what it left", p.Name, ErrNone, p.Name)
	}
	return r, nil
}

// Enter returns a command prefix that runs a command in the sandbox.
func (p Place) Enter() ([]string, error) {
	r, err := p.read()
	if err != nil {
		return nil, err
	}
	return []string{"nsenter", "--target", strconv.Itoa(r.Init), "--mount", "--net", "--pid", "--uts", "--ipc"}, nil
}

// overlayfs is the kernel's number of this file system, which cannot be stacked on itself.
const overlayfs = 0x794c7630

// Snapshotter returns the containerd snapshotter that works in the folder of sandboxes. If the
// machine is itself a container, layers are copied.
func Snapshotter() (string, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(root, &fs); err != nil {
		return "", fmt.Errorf("look at the file system of %s: %w", root, err)
	}
	if fs.Type == overlayfs {
		return "native", nil
	}
	return "overlayfs", nil
}
