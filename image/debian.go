package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// debPackage is a Debian package that is downloaded and not installed.
type debPackage struct {
	name, version, path string
}

// offeredPackage is a package that apt offers to download.
type offeredPackage struct {
	name, version, file, sum string
}

// fetch downloads packages in the versions that this machine's apt knows, each file once. apt's
// lists may be empty, or so old that the mirror no longer has the files. Then root updates the
// lists.
func fetch(ctx context.Context, cache string, names ...string) ([]debPackage, error) {
	got, err := fetchOnce(ctx, cache, names)
	if err == nil || os.Getuid() != 0 || errors.Is(err, exec.ErrNotFound) {
		return got, err
	}
	if _, updateErr := command(ctx, "", "apt-get", "update", "-qq"); updateErr != nil {
		return nil, errors.Join(err, updateErr)
	}
	return fetchOnce(ctx, cache, names)
}

func fetchOnce(ctx context.Context, cache string, names []string) ([]debPackage, error) {
	// apt offers no file that is already in its folder, so this folder stays empty.
	empty := filepath.Join(cache, "empty")
	if err := os.MkdirAll(empty, 0o755); err != nil {
		return nil, err
	}
	said, err := command(ctx, empty, "apt-get", append([]string{"download", "--print-uris", "-qq"}, names...)...)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("the image's C library is Debian's, and there is no apt-get here: build it on Debian or Ubuntu, or with docker build -f image/Dockerfile . : %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("ask apt for %s, which apt-get update lets it know: %w", strings.Join(names, ", "), err)
	}
	all, err := parseOffers(string(said))
	if err != nil {
		return nil, err
	}
	if len(all) != len(names) {
		return nil, fmt.Errorf("apt offers %d packages for %s: run apt-get update", len(all), strings.Join(names, ", "))
	}
	var got []debPackage
	for _, o := range all {
		path, err := o.download(ctx, cache)
		if err != nil {
			return nil, err
		}
		got = append(got, debPackage{o.name, o.version, path})
	}
	return got, nil
}

// parseOffers reads apt's lines: 'URL' file size SHA256:sum.
func parseOffers(said string) ([]offeredPackage, error) {
	var all []offeredPackage
	for line := range strings.Lines(said) {
		fields := strings.Fields(line)
		if len(fields) != 4 || !strings.HasPrefix(fields[0], "'") {
			return nil, fmt.Errorf("apt said %q where a URL, a file, its size and its SHA-256 belong", strings.TrimSpace(line))
		}
		parts := strings.Split(strings.TrimSuffix(fields[1], ".deb"), "_")
		sum, is := strings.CutPrefix(fields[3], "SHA256:")
		if len(parts) != 3 || !is {
			return nil, fmt.Errorf("apt offers %s with %s, not name_version_architecture.deb with a SHA-256", fields[1], fields[3])
		}
		// apt writes a colon in a file's name as %3a.
		all = append(all, offeredPackage{parts[0], strings.ReplaceAll(parts[1], "%3a", ":"), fields[1], sum})
	}
	return all, nil
}

// download downloads the package unless the cache has the same file.
func (o offeredPackage) download(ctx context.Context, cache string) (string, error) {
	path := filepath.Join(cache, o.file)
	if sumOf(path) == o.sum {
		return path, nil
	}
	tmp, err := os.MkdirTemp(cache, "download-")
	if err != nil {
		return "", err
	}
	// apt downloads files as a separate user if it can.
	err = os.Chmod(tmp, 0o777)
	if err == nil {
		_, err = command(ctx, tmp, "apt-get", "download", "-qq", o.name+"="+o.version)
	}
	if err == nil && sumOf(filepath.Join(tmp, o.file)) != o.sum {
		err = fmt.Errorf("the file is not the one whose SHA-256 apt says is %s", o.sum)
	}
	if err == nil {
		err = os.Rename(filepath.Join(tmp, o.file), path)
	}
	if err := errors.Join(err, os.RemoveAll(tmp)); err != nil {
		return "", fmt.Errorf("download Debian's package %s: %w", o.file, err)
	}
	return path, nil
}

// sumOf returns an empty string for a file that cannot be read, so that the file is downloaded
// again.
func sumOf(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	var problems bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = dir, &problems
	said, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(problems.Bytes()))
	}
	return said, nil
}
