package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const installed = "agent"

// install copies this program into a folder. The copy appears complete or not at all. It may
// replace a copy from before a restart of the container.
func install(dir string) (err error) {
	self, err := os.Executable()
	if err == nil {
		err = copyTo(self, dir)
	}
	if err != nil {
		return fmt.Errorf("install the agent in %s: %w", dir, err)
	}
	return nil
}

func copyTo(self, dir string) error {
	from, err := os.Open(self)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.CreateTemp(dir, installed+"-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	err = errors.Join(err, to.Chmod(0o755), to.Close())
	if err == nil {
		err = os.Rename(to.Name(), filepath.Join(dir, installed))
	}
	if err != nil {
		return errors.Join(err, os.Remove(to.Name()))
	}
	return nil
}
