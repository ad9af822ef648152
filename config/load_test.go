package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestLoadFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), "version: 1\nname: prod\nstreams: {a: {types: [x1]}}")
	write(t, filepath.Join(dir, "b.yml"), "version: 1\nstreams: {b: {partitions: 3}}")
	write(t, filepath.Join(dir, ".c.yaml"), "an editor's leaving: [")
	write(t, filepath.Join(dir, "notes.txt"), "not ours: [")
	cfg, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := cfg.Stream("b"); !ok || cfg.Name != "prod" || cfg.StreamFor("x1") != "a" {
		t.Errorf("got %+v", cfg)
	}
	one, err := Parse("x", []byte("version: 1\nname: prod\nstreams: {a: {types: [x1]}, b: {partitions: 3}}"))
	if err != nil || one.Hash() != cfg.Hash() {
		t.Errorf("one file and two that mean the same have two hashes, %v", err)
	}
}

// A folder that Kubernetes mounts as a ConfigMap is read through ..data, and problems show the
// names that the user knows.
func TestLoadConfigMap(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "..2026"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "..2026", "a.yaml"), "version: 1\nnam: x")
	link(t, "..2026", filepath.Join(dir, "..data"))
	link(t, "..data/a.yaml", filepath.Join(dir, "a.yaml"))
	_, err := Load(dir)
	var p Problem
	if !errors.As(err, &p) || p.File != filepath.Join(dir, "a.yaml") || p.Line != 2 {
		t.Errorf("got %v", err)
	}
	write(t, filepath.Join(dir, "..2026", "a.yaml"), "version: 1\nname: x")
	if cfg, err := Load(dir); err != nil || cfg.Name != "x" {
		t.Errorf("got %+v, %v", cfg, err)
	}
}

func TestLoadSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	_, err := Load(filepath.Join(dir, "none.yaml"))
	if err == nil || !strings.Contains(err.Error(), "does not exist; name a YAML file") {
		t.Errorf("got %v", err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600); err != nil {
		t.Skip(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "pipe.yaml is not a file") {
		t.Errorf("a pipe in a folder: %v", err)
	}
}

func TestReaderParsesWhatHasChanged(t *testing.T) {
	dir := t.TempDir()
	r := NewReader(dir, Place{})
	if _, err := r.Load(); err == nil || !strings.Contains(err.Error(), "has no *.yaml") {
		t.Errorf("an empty folder: %v", err)
	}
	write(t, filepath.Join(dir, "a.yaml"), "version: 1\nname: one")
	one, err := r.Load()
	if err != nil || one.Name != "one" {
		t.Fatalf("%+v, %v", one, err)
	}
	if again, err := r.Load(); again != one || err != nil {
		t.Errorf("unchanged, it is %+v, %v", again, err)
	}
	write(t, filepath.Join(dir, "b.yaml"), "version: 1\nname: ")
	_, bad := r.Load()
	if _, again := r.Load(); bad == nil || again != bad {
		t.Errorf("a bad file: %v, then %v", bad, again)
	}
	write(t, filepath.Join(dir, "b.yaml"), "version: 1\nstreams: {b: }")
	if two, err := r.Load(); err != nil || two == one || len(two.Streams) != len(one.Streams)+1 {
		t.Errorf("%+v, %v", two, err)
	}
}
