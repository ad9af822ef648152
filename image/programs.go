package main

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"tidemill.dev/image/archive"
)

// provenance is the build information that Go's toolchain stores in the programs.
type provenance struct {
	version, revision string
	created           time.Time
}

// program is a program of the image and its path.
type program struct{ name, path string }

// programs are all built alike. No program has the path /tidemill, because pods have folders below
// that path.
func programs() []program {
	return []program{{"tidemill", strings.TrimPrefix(entrypoint, "/")}, {"tidemill-agent", "tidemill-agent"}}
}

// entrypoint is in a folder of the usual PATH.
const entrypoint = "/usr/local/bin/tidemill"

// buildCommand returns the command for a program. The command has the flags of make build, and
// stores the commit even if GOFLAGS turns that off.
func buildCommand(folder, name string) []string {
	return []string{"go", "build", "-trimpath", "-buildvcs=auto", "-tags=grpcnotrace", "-gcflags=all=-dwarf=false",
		"-gcflags=tidemill.dev/internal/gateway/dashboard=-dwarf=false -l", "-ldflags=-s -w", "-o", filepath.Join(folder, name), "./cmd/" + name}
}

// buildAll builds the programs into a permanent folder, so that an unchanged program is not linked
// again.
func buildAll(ctx context.Context, folder string) ([]archive.File, provenance, error) {
	var (
		files []archive.File
		made  provenance
	)
	for i, p := range programs() {
		data, err := build(ctx, folder, p.name, "GOOS=linux")
		if err != nil {
			return nil, made, err
		}
		files = append(files, archive.Program(p.path, data))
		if i > 0 {
			continue
		}
		if made, err = provenanceOf(filepath.Join(folder, p.name)); err != nil {
			return nil, made, err
		}
	}
	return files, made, nil
}

func build(ctx context.Context, folder, name string, system ...string) ([]byte, error) {
	line := buildCommand(folder, name)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), system...)
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build %s: %w: %s", name, err, said)
	}
	return os.ReadFile(filepath.Join(folder, name))
}

func provenanceOf(program string) (provenance, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return provenance{}, fmt.Errorf("read what %s was built from: %w", program, err)
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	return provenanceFrom(info.Main.Version, settings)
}

// provenanceFrom uses the commit's time as the image's time, because the build's time would make
// each image different. Without a repository it uses the Unix epoch.
func provenanceFrom(version string, settings map[string]string) (provenance, error) {
	made := provenance{version: version, revision: settings["vcs.revision"], created: time.Unix(0, 0).UTC()}
	if made.version == "" {
		made.version = "(devel)"
	}
	if settings["vcs.modified"] == "true" && !strings.HasSuffix(made.version, "+dirty") {
		made.version += "+dirty"
	}
	at := settings["vcs.time"]
	if at == "" {
		return made, nil
	}
	created, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return made, fmt.Errorf("read the time of the commit: %w", err)
	}
	made.created = created
	return made, nil
}
