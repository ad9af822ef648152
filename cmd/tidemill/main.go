// Command tidemill is Tidemill: one binary, a file a subcommand.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/local"
)

func main() {
	ctx, stop := untilInterrupted(context.Background(), os.Stderr)
	defer stop()
	os.Exit(report(os.Stderr, run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)))
}

// run does what the arguments say. Tests call it as main does.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 1 { // what we call ourselves, and nobody else does
		switch args[0] {
		case local.GuardArgument:
			return local.Guard(ctx)
		case demoTrainer:
			return trainDemo(ctx, os.Getenv, stdout)
		}
	}
	s := &session{stdin: stdin, stdout: stdout, stderr: stderr, getenv: os.Getenv}
	name, rest, err := splitCommand(args)
	if err != nil {
		return err
	}
	c, err := findCommand(name)
	if err != nil {
		return err
	}
	p, positional, err := c.parse(rest, s.getenv)
	if errors.Is(err, errHelp) {
		return c.explain(s.stdout)
	}
	if err != nil {
		return err
	}
	return p.run(ctx, s, positional)
}

// session is the world around one call of the program.
type session struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
}

const (
	exitFailed = 1
	exitUsage  = 2
)

// errReported says that all there is to say has been said.
var errReported = errors.New("failed; the reasons have been printed")

// report prints an error and says what to exit with.
func report(stderr io.Writer, err error) int {
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errReported):
		return exitFailed
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "tidemill: %v\n", err)
		return exitUsage
	}
	fmt.Fprintf(stderr, "tidemill: %v%s\n", err, hint(err))
	return exitFailed
}

// hint is what a gateway does not know to say: how a command is given a token.
func hint(err error) string {
	var p *api.Problem
	if errors.As(err, &p) && p.Type == api.ProblemBase+api.Unauthenticated {
		return "; give one that counts by " + envToken + " or --token-file"
	}
	return ""
}
