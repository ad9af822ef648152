package agent

import (
	"errors"
	"fmt"
	"os/exec"

	"tidemill.dev"
)

// ending is how the command has ended.
type ending struct {
	exit   int // -1 if a signal ended it
	signal string
	err    error // nil for a success
}

// endingOf reads it from the wait's error.
func endingOf(err error, p *tidemill.Plan) ending { // p is nil where no engine ran it
	var exit *exec.ExitError
	switch {
	case err == nil:
		return ending{}
	case !errors.As(err, &exit):
		return ending{exit: -1, err: fmt.Errorf("wait for the command: %w", err)}
	}
	if name := signalOf(exit); name != "" {
		return killedBy(name)
	}
	return exitedWith(exit.ExitCode(), p)
}

func killedBy(signal string) ending {
	return ending{exit: -1, signal: signal, err: errors.New("killed by " + signal + why(signal))}
}

func why(signal string) string {
	switch signal {
	case "SIGKILL":
		return " (out of memory?)"
	case "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT":
		return " (a fault in native code)"
	}
	return ""
}

// exitedWith knows what engines mean by some of the numbers.
func exitedWith(code int, p *tidemill.Plan) ending {
	e := ending{exit: code, err: fmt.Errorf("exit status %d", code)}
	if p == nil {
		return e
	}
	switch {
	case code == 125:
		e.err = fmt.Errorf("the container of %s was not started: the log says why", p.Image)
	case code == 126, code == 127:
		e.err = permanent("the image %s has no command that could be run as %q (exit status %d)", p.Image, p.Command, code)
	case code == 137:
		return killedBy("SIGKILL")
	case code == 139:
		return killedBy("SIGSEGV")
	case code == 143:
		return killedBy("SIGTERM")
	}
	return e
}
