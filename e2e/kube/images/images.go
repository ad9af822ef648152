// Package images makes the images of the cluster's tests as tar files: Tidemill's own, and small
// images with one static program each. No program is compiled twice: an unchanged program stays,
// and the same program gives the same image.
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

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"tidemill.dev/image/archive"
)

// The names of images. Knative does not ask a registry for the digests of dev.local.
const (
	Tidemill = "dev.local/tidemill:v1"
	Job      = "dev.local/tidemill-job:v1"     // the program of e2e/kube/job, as /job
	Intents  = "dev.local/tidemill-intents:v1" // the trainer of examples/intents, as /intents
)

// Inherited is a variable that the images of programs set, as users' images do. A command inherits
// the variable unless its recipe overrides it.
const Inherited = "TEST_IMAGE"

// Build makes Tidemill's image under the given name, which may have another tag, or the image of a
// program. It returns the image's file.
func Build(ctx context.Context, name string) (string, error) {
	rig, err := module(ctx)
	if err != nil {
		return "", err
	}
	root := filepath.Join(rig, "..", "..")
	file := filepath.Join(root, "bin", "images", strings.NewReplacer("/", "_", ":", "_").Replace(name)+".tar")
	switch name {
	case Job:
		return file, program(ctx, rig, name, "./job", file)
	case Intents:
		return file, program(ctx, root, name, "./examples/intents", file)
	}
	return file, command(ctx, filepath.Join(root, "image"), "run", ".", "-plain", "-name", name, "-o", file)
}

// module returns the folder of e2e/kube, from any folder of the module.
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

// program writes an image with one static program. The program is built in the folder of its
// module.
func program(ctx context.Context, module, name, source, file string) error {
	base := filepath.Base(source)
	built := filepath.Join(filepath.Dir(file), base)
	if err := command(ctx, module, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", built, source); err != nil {
		return err
	}
	data, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	return write(file, archive.Image{
		Name: name, Architecture: runtime.GOARCH, Created: time.Unix(0, 0), Plain: true,
		Config: v1.Config{Entrypoint: []string{"/" + base}, WorkingDir: "/", Env: []string{"PATH=/", Inherited + "=" + base}},
		Layers: []archive.Layer{{Note: source, Files: []archive.File{archive.Program(base, data)}}},
	})
}

func write(file string, im archive.Image) error {
	var out bytes.Buffer
	if _, err := archive.Write(&out, im); err != nil {
		return err
	}
	// The file is written under another name and renamed, because another test may be importing it.
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

func command(ctx context.Context, folder string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(said))
	}
	return nil
}
