package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"tidemill.dev/internal/scoring/infer/ort"
	"tidemill.dev/loadtest/internal/task"
)

// contenders are the programs that are compared with a scorer.
type contenders struct {
	ours, franz []string
	plain       []string
	python      []string // nil if it is not installed
	noPython    string   // reason for that
	runtime     bool     // an ONNX Runtime is installed
	texts       string   // program that trains the model of examples/intents
	said        string
}

func (c contenders) String() string { return c.said }

// buildContenders builds the programs other than this one.
func buildContenders(ctx context.Context, p scorePlan, folder string) (contenders, error) {
	found, err := findClients(ctx, p.self, p.franz, folder)
	c := contenders{ours: found.ours, franz: found.franz, plain: []string{filepath.Join(folder, "plain")}, texts: filepath.Join(folder, "intents")}
	if err == nil {
		err = buildProgram(ctx, "plain", c.plain[0])
	}
	if err == nil {
		err = buildProgram(ctx, filepath.Join("..", "examples", "intents"), c.texts)
	}
	if err != nil {
		return c, err
	}
	if python, why := findInstalled(ctx, "scorer", p.fetch); why == "" {
		c.python = []string{python, filepath.Join(sourceFolder("peers"), "python", "score.py")}
	} else {
		c.noPython = why
	}
	r, err := ort.Open("")
	switch {
	case errors.Is(err, ort.ErrMissing):
		c.said = "There is no ONNX Runtime here (make onnxruntime fetches it): the plain Go consumer uses our Go engine, and inference alone is that engine's."
	case err != nil:
		return c, err
	default:
		version, path := r.Version()
		c.runtime, c.said = true, fmt.Sprintf("ONNX Runtime %s, %s.", version, path)
	}
	return c, nil
}

// findInstalled returns how to start a program of loadtest/peers, or the reason that it is not
// there.
func findInstalled(ctx context.Context, name string, fetch bool) (start, why string) {
	args := []string{"-n", name}
	if fetch {
		args = args[1:]
	}
	var said strings.Builder
	look := exec.CommandContext(ctx, filepath.Join(sourceFolder("peers"), "install"), args...)
	look.Stderr = &said
	out, err := look.Output()
	start = strings.TrimSpace(string(out))
	switch {
	case err != nil:
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		return "", fmt.Sprintf("%s was not installed (%v): %s", name, err, lines[len(lines)-1])
	case start == "":
		return "", name + " is not installed; give -fetch"
	}
	return start, ""
}

// doAs runs a client in its own process, on the given number of cores; 0 means all.
func doAs(ctx context.Context, program []string, arg any, cores int) (r task.Result, err error) {
	var env []string
	if cores > 0 {
		env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", cores))
	}
	err = runChild(ctx, program, env, arg, &r)
	return r, err
}

// runChild gives a program its task as JSON, and reads its result as JSON.
func runChild(ctx context.Context, program, env []string, arg, result any) error {
	what := filepath.Base(program[len(program)-1])
	text, err := json.Marshal(arg)
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, program[0], append(program[1:len(program):len(program)], string(text))...)
	c.Env = env
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", what, err, strings.TrimSpace(said.String()))
	}
	if err := json.Unmarshal(out, result); err != nil {
		return fmt.Errorf("read the result of %s: %w", what, err)
	}
	return nil
}

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
