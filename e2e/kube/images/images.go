// Package images makes the images of the cluster's tests, as tar files: of
// Tidemill itself, and small ones that hold a static program each. Nothing is
// compiled twice: a program that has not changed stays, and the same program
// gives the same image.
package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"tidemill.dev/internal/ocitar"
)

// The names of images. Knative asks no registry what the tag of dev.local means.
const (
	Tidemill = "dev.local/tidemill:v1"
	Job      = "dev.local/tidemill-job:v1"     // e2e/kube/job, as /job
	Intents  = "dev.local/tidemill-intents:v1" // the trainer of examples/intents, as /intents
)

// Inherited is a variable that the images of programs set, as others' images do:
// a command finds it, unless its recipe says otherwise.
const Inherited = "TEST_IMAGE"

// Build makes an image of Tidemill under the given name, which may have another
// tag, or one of a program, and says in which file it is.
func Build(ctx context.Context, name string) (string, error) {
	root, err := module(ctx)
	if err != nil {
		return "", err
	}
	file := filepath.Join(root, "bin", "images", strings.NewReplacer("/", "_", ":", "_").Replace(name)+".tar")
	switch name {
	case Job:
		return file, program(ctx, root, name, "./e2e/kube/job", file)
	case Intents:
		return file, program(ctx, root, name, "./examples/intents", file)
	}
	return file, command(ctx, root, "run", "./image", "-plain", "-name", name, "-o", file)
}

// module is the folder of ours, wherever the test runs.
func module(ctx context.Context) (string, error) {
	said, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	file := strings.TrimSpace(string(said))
	if file == "" || file == os.DevNull {
		return "", errors.New("find the module: run the tests in its folder")
	}
	return filepath.Dir(file), nil
}

// program writes an image that holds one static program and nothing else.
func program(ctx context.Context, root, name, source, file string) error {
	base := filepath.Base(source)
	built := filepath.Join(root, "bin", "images", base)
	if err := command(ctx, root, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", built, source); err != nil {
		return err
	}
	data, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	return write(file, ocitar.Image{
		Name: name, Architecture: runtime.GOARCH, Created: time.Unix(0, 0), Plain: true,
		Config: ocitar.Config{Entrypoint: []string{"/" + base}, WorkingDir: "/", Env: []string{"PATH=/", Inherited + "=" + base}},
		Layers: []ocitar.Layer{{Note: source, Files: []ocitar.File{ocitar.Program(base, data)}}},
	})
}

func write(file string, im ocitar.Image) error {
	var out bytes.Buffer
	if _, err := ocitar.Write(&out, im); err != nil {
		return err
	}
	// Beside and renamed: another test may be importing it.
	part, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+"-")
	if err != nil {
		return err
	}
	_, err = part.Write(out.Bytes())
	if err = errors.Join(err, part.Close()); err == nil {
		err = os.Rename(part.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part.Name()))
	}
	return nil
}

func command(ctx context.Context, root string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(said))
	}
	return nil
}
