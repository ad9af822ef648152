package recipe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// maker builds one cache.
type maker struct {
	source string // folder of the module
	dir    string // folder of the build
	say    func(string, ...any)
}

func (m maker) all(ctx context.Context) error {
	steps := []func(context.Context) error{m.debian, m.manifests, m.programs, m.images}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (m maker) programs(ctx context.Context) error {
	for _, p := range programs {
		if err := m.goBuild(ctx, p, filepath.Join("bin", p.Name)); err != nil {
			return err
		}
	}
	return nil
}

// kwok builds kwok and its stages. It is separate because its modules are of another release than
// the rest.
func (m maker) kwok(ctx context.Context) error {
	m = m.ofKwok()
	if err := m.goBuild(ctx, kwok, kwok.Name); err != nil {
		return err
	}
	data, err := m.gather(ctx, stages)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(m.dir, "kwok.yaml"), data, 0o644); err != nil {
		return fmt.Errorf("write kwok's stages: %w", err)
	}
	return nil
}

// ofKwok returns a maker for kwok's module.
func (m maker) ofKwok() maker {
	m.source = filepath.Join(m.source, "kwok")
	return m
}

// images makes one tar file per image. The tar files contain the binaries, which are then removed.
func (m maker) images(ctx context.Context) error {
	for _, p := range images {
		if err := m.goBuild(ctx, p, p.Name); err != nil {
			return err
		}
		binary := filepath.Join(m.dir, p.Name)
		tar := filepath.Join(m.dir, "images", p.Name+".tar")
		if err := errors.Join(WriteImage(tar, ImageName(p.Name), binary), os.Remove(binary)); err != nil {
			return err
		}
	}
	return nil
}

func (m maker) goBuild(ctx context.Context, p program, to string) error {
	began := time.Now()
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-buildvcs=false", "-ldflags", linkerFlags(),
		"-o", filepath.Join(m.dir, to), p.Package)
	cmd.Dir = m.source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", p.Package, err, said)
	}
	m.say("built %s in %s", p.Name, time.Since(began).Round(100*time.Millisecond))
	return nil
}

// ImageName is the name of an image of the recipe. Knative does not ask a registry about dev.local.
func ImageName(name string) string { return "dev.local/" + name + ":v1" }

// moduleFolder returns the folder in which Go keeps a module's files. A build has downloaded most
// modules, but not those whose code nothing imports.
func (m maker) moduleFolder(ctx context.Context, module string) (string, error) {
	if _, err := m.goSays(ctx, "mod", "download", module); err != nil {
		return "", err
	}
	return m.goSays(ctx, "list", "-m", "-f", "{{.Dir}}", module)
}

func (m maker) goSays(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = m.source
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, complaint.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}
