// The command tidemill-agent does the attempts of a pod, in the container of the run's own image.
// It is static and small because it is copied into that container.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"tidemill.dev/internal/runs/agent"
)

// The exit codes. They tell the watcher of the pod whether the agent has reported the attempt's
// end.
const (
	exitTold       = 0
	exitUntold     = 1
	exitMisused    = 2
	exitSuperseded = 3 // another attempt has replaced this one, so there is nothing to report
)

func main() {
	err := run(context.Background(), os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "tidemill-agent:", err)
	}
	os.Exit(codeOf(err))
}

// errMisused is wrapped by errors of a wrong call.
var errMisused = errors.New("call it with install DIR, or with run")

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "install":
		return install(args[1])
	case len(args) != 1 || args[0] != "run":
		return errMisused
	}
	if err := hideProcess(); err != nil {
		return err
	}
	if os.Getpid() == 1 {
		return beFirst(args)
	}
	return runAttempts(ctx, os.Getenv)
}

func codeOf(err error) int {
	var first *exitStatus
	switch {
	case err == nil:
		return exitTold
	case errors.As(err, &first):
		return first.code
	case errors.Is(err, errMisused):
		return exitMisused
	case errors.Is(err, agent.ErrSuperseded):
		return exitSuperseded
	}
	return exitUntold
}

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
