package recipe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// debian downloads packages and unpacks their files into a folder. Nothing is installed.
func (m maker) debian(ctx context.Context) error {
	into, err := os.MkdirTemp("", "tidemill-cluster-debian-")
	if err != nil {
		return fmt.Errorf("make a folder for packages: %w", err)
	}
	defer os.RemoveAll(into)
	names, err := m.wantedPackages(ctx)
	if err != nil {
		return err
	}
	if err := download(ctx, into, names); err != nil {
		return err
	}
	return m.unpack(ctx, into)
}

// download updates apt's lists if the mirror no longer has the files that this machine's lists
// name.
func download(ctx context.Context, into string, names []string) error {
	get := append([]string{"download"}, names...)
	_, err := in(ctx, into, "apt-get", get...)
	if err == nil {
		return nil
	}
	if _, unknown := in(ctx, "", "apt-get", "update"); unknown != nil {
		return errors.Join(err, unknown)
	}
	_, err = in(ctx, into, "apt-get", get...)
	return err
}

// wantedPackages are our packages and those that apt would install with them on this machine.
func (m maker) wantedPackages(ctx context.Context) ([]string, error) {
	ask := append([]string{"install", "--simulate", "--no-install-recommends"}, packages[:]...)
	plan, err := in(ctx, "", "apt-get", ask...)
	if err != nil { // without package lists apt knows no packages
		if _, err := in(ctx, "", "apt-get", "update"); err != nil {
			return nil, err
		}
		if plan, err = in(ctx, "", "apt-get", ask...); err != nil {
			return nil, err
		}
	}
	names := append(slices.Clone(packages[:]), installed(plan)...)
	slices.Sort(names)
	names = slices.Compact(names)
	m.say("fetching Debian's %s", strings.Join(names, ", "))
	return names, nil
}

// installed parses the names from a simulation of apt-get: `Inst NAME (…)`.
func installed(plan []byte) []string {
	var names []string
	lines := bufio.NewScanner(bytes.NewReader(plan))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 1 && fields[0] == "Inst" {
			names = append(names, fields[1])
		}
	}
	return names
}

func (m maker) unpack(ctx context.Context, from string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.deb"))
	if err != nil || files == nil {
		return errors.Join(errors.New("find the packages that apt-get fetched: there are none"), err)
	}
	to := filepath.Join(m.dir, "debian")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("make a folder for packages: %w", err)
	}
	for _, file := range files {
		if _, err := in(ctx, "", "dpkg", "-x", file, to); err != nil {
			return err
		}
	}
	return nil
}

// in runs a command in a folder. Its error contains the command's message.
func in(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(complaint.Bytes()))
	}
	return out.Bytes(), nil
}
