package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"tidemill.dev/image/archive"
)

// unpackLayers writes each layer as a folder with the layer's name, for the Dockerfile to copy.
func unpackLayers(folder string, layers []archive.Layer) error {
	var all error
	for _, l := range layers {
		for _, f := range l.Files {
			all = errors.Join(all, place(filepath.Join(folder, l.Note, f.Path), f))
		}
	}
	return all
}

func place(path string, f archive.File) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	switch f.Mode.Type() {
	case fs.ModeDir:
		// The mode is set separately, because the process's umask applies to new files.
		return errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, f.Mode))
	case fs.ModeSymlink:
		return os.Symlink(f.Link, path)
	}
	return errors.Join(os.WriteFile(path, f.Data, f.Mode.Perm()), os.Chmod(path, f.Mode))
}
