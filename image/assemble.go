package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"tidemill.dev/image/archive"
)

// imageUser is the user id with which the image runs. Other images use the same id for a user
// without rights.
const imageUser = 65532

// The names of the layers, in their order. A new build changes only the last layer.
const (
	layerBase     = "base"
	layerRuntime  = "onnxruntime"
	layerPrograms = "programs"
)

// assemble gathers the contents of the image.
func assemble(ctx context.Context, name string) (archive.Image, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return archive.Image{}, fmt.Errorf("find the cache of downloads: %w", err)
	}
	programs, made, err := buildAll(ctx, filepath.Join("bin", "image"))
	if err != nil {
		return archive.Image{}, err
	}
	engine, err := onnxRuntime(ctx)
	if err != nil {
		return archive.Image{}, err
	}
	base, packages, err := debianLayer(ctx, filepath.Join(cache, "tidemill", "debian"))
	if err != nil {
		return archive.Image{}, err
	}
	return archive.Image{
		Name: name, Architecture: runtime.GOARCH, Created: made.created,
		Config: runConfig(made, packages),
		Layers: []archive.Layer{{Note: layerBase, Files: base}, {Note: layerRuntime, Files: engine}, {Note: layerPrograms, Files: programs}},
	}, nil
}

// runConfig is the image's run configuration. The Dockerfile has the same configuration.
func runConfig(made provenance, packages []debPackage) v1.Config {
	var versions []string
	for _, p := range packages {
		versions = append(versions, p.name+"="+p.version)
	}
	return v1.Config{
		User:       fmt.Sprintf("%d:%d", imageUser, imageUser),
		Entrypoint: []string{entrypoint},
		WorkingDir: "/",
		Env:        []string{"PATH=/usr/local/bin:/usr/bin:/bin", "TIDEMILL_ONNXRUNTIME=/" + libraryPath},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "tidemill",
			"org.opencontainers.image.description": "Trains models when events come in, judges them and scores streams with them",
			"org.opencontainers.image.version":     made.version,
			"org.opencontainers.image.revision":    made.revision,
			"dev.tidemill.packages":                strings.Join(versions, " "),
		},
	}
}

// writeImage writes the image to a temporary file, reads it back, and only then renames it.
func writeImage(path string, im archive.Image) (archive.Content, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return archive.Content{}, err
	}
	part := path + ".part"
	f, err := os.Create(part)
	if err != nil {
		return archive.Content{}, err
	}
	_, err = archive.Write(f, im)
	if err := errors.Join(err, f.Close()); err != nil {
		return archive.Content{}, errors.Join(err, os.Remove(part))
	}
	c, err := read(part)
	if err != nil {
		return archive.Content{}, errors.Join(fmt.Errorf("check what was written: %w", err), os.Remove(part))
	}
	return c, os.Rename(part, path)
}

func read(path string) (archive.Content, error) {
	f, err := os.Open(path)
	if err != nil {
		return archive.Content{}, err
	}
	c, err := archive.Read(f)
	return c, errors.Join(err, f.Close())
}

func report(w io.Writer, path string, c archive.Content) error {
	var small, whole int64
	for _, l := range c.Layers {
		small, whole = small+l.Size, whole+int64(len(l.Tar))
		if _, err := fmt.Fprintf(w, "%-12s %7.1f MB, unpacked %7.1f MB  %s\n", l.Note, mb(l.Size), mb(int64(len(l.Tar))), l.Digest); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "%-12s %7.1f MB, unpacked %7.1f MB  %s\n%s is in %s\n", "image", mb(small), mb(whole), c.Digest, c.Name, path)
	return err
}

func mb(n int64) float64 { return float64(n) / 1e6 }
