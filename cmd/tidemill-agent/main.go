// The command tidemill-agent does the attempts of a pod, in the container of the
// run's own image. It is static and small, for it is copied there.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"tidemill.dev/internal/runs/agent"
)

// The exit codes. Whoever watches pods tells from them whether the attempt has
// told of its end itself.
const (
	exitTold       = 0
	exitUntold     = 1
	exitMisused    = 2
	exitSuperseded = 3 // the attempt counts no more, and nobody wants to hear of it
)

func main() {
	err := run(context.Background(), os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "tidemill-agent:", err)
	}
	os.Exit(codeOf(err))
}

// errMisused is in the error of a call that says too little.
var errMisused = errors.New("call it with install DIR, or with run")

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "install":
		return install(args[1])
	case len(args) != 1 || args[0] != "run":
		return errMisused
	}
	if err := hide(); err != nil {
		return err
	}
	if os.Getpid() == 1 {
		return beFirst(args)
	}
	return runAttempts(ctx, os.Getenv)
}

func codeOf(err error) int {
	var first *ended
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
