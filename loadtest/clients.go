package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"tidemill.dev/loadtest/internal/task"
)

// clients are the two programs that are compared.
type clients struct {
	ours  []string
	franz []string
}

// findClients returns this program and franz-go's client, which it builds if no path is given.
func findClients(ctx context.Context, self, given, folder string) (clients, error) {
	c := clients{ours: []string{self, roleClient}, franz: []string{given}}
	if given != "" {
		return c, nil
	}
	c.franz[0] = filepath.Join(folder, "franz")
	if err := buildProgram(ctx, "franz", c.franz[0]); err != nil {
		return c, fmt.Errorf("%w, or give -franz", err)
	}
	return c, nil
}

// buildProgram builds the program in a folder below this one. It needs the sources, which it finds
// from the repository's root or from this folder.
func buildProgram(ctx context.Context, name, out string) error {
	source := sourceFolder(name)
	build := exec.CommandContext(ctx, "go", "build", "-C", source, "-o", out, ".")
	build.Env = append(os.Environ(), "GOWORK=off")
	if said, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s\nrun this from the repository's root", source, err, said)
	}
	return nil
}

// sourceFolder returns the path of a folder below this one.
func sourceFolder(name string) string {
	folder := filepath.Join("loadtest", name)
	if _, err := os.Stat(folder); err != nil {
		return name
	}
	return folder
}

// runClient runs a client in its own process.
func runClient(ctx context.Context, program []string, t task.Task) (task.Result, error) {
	var r task.Result
	arg, err := json.Marshal(t)
	if err != nil {
		return r, err
	}
	c := exec.CommandContext(ctx, program[0], append(program[1:], string(arg))...)
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		return r, fmt.Errorf("%s with %s: %w: %s", t.Do, filepath.Base(program[0]), err, strings.TrimSpace(said.String()))
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return r, fmt.Errorf("read the result of %s: %w", filepath.Base(program[0]), err)
	}
	return r, nil
}
