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

// provenance is what the toolchain noted in the programs.
type provenance struct {
	version, revision string
	created           time.Time
}

// program is what the image is for, and where it has it.
type program struct{ name, path string }

// programs are all built alike. None of them is /tidemill: pods have folders
// below that.
func programs() []program {
	return []program{{"tidemill", strings.TrimPrefix(entrypoint, "/")}, {"tidemill-agent", "tidemill-agent"}}
}

// entrypoint is where programs are looked for by their names.
const entrypoint = "/usr/local/bin/tidemill"

// buildCommand is how a program is built: as make build does, and with the commit
// noted in it, whatever GOFLAGS says.
func buildCommand(folder, name string) []string {
	return []string{"go", "build", "-trimpath", "-buildvcs=auto", "-tags=grpcnotrace", "-ldflags=-s -w", "-o", filepath.Join(folder, name), "./cmd/" + name}
}

// buildAll builds the programs into a folder that stays, so that one that has not
// changed is not linked again.
func buildAll(ctx context.Context, folder string) ([]archive.File, provenance, error) {
	var (
		files []archive.File
		made  provenance
	)
	for i, p := range programs() {
		data, err := build(ctx, folder, p.name)
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

func build(ctx context.Context, folder, name string) ([]byte, error) {
	line := buildCommand(folder, name)
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
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

// provenanceFrom takes the commit's time as the image's, since that of the build
// would make each another image. Without a repository there is none, and the
// oldest of times says so.
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
