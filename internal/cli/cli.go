package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/examples/demo"
	"tidemill.dev/internal/runs/local"
)

// Main runs the program and exits.
func Main() {
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
		case demo.Trainer:
			return demo.Train(ctx, os.Getenv, stdout)
		}
	}
	s := &session{stdin: stdin, stdout: stdout, stderr: stderr, getenv: os.Getenv}
	return execute(ctx, s, args, func(ctx context.Context, _ *command, p program, args []string) error { return p.run(ctx, s, args) })
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

const exitAborted = 130 // as a shell says of what SIGINT ended

const sayAfter = time.Second

// untilInterrupted gives a context that the first Ctrl-C or SIGTERM ends, so
// that the stop order runs. The second one ends the process where it stands.
func untilInterrupted(ctx context.Context, stderr io.Writer) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case <-signals:
		case <-ctx.Done():
			return
		}
		// Most stop before anybody wonders; those who wait shall know for what.
		time.AfterFunc(sayAfter, func() {
			fmt.Fprintln(stderr, "tidemill: still stopping in good order; Ctrl-C once more stops at once")
		})
		cancel()
		<-signals
		os.Exit(exitAborted)
	}()
	return ctx, cancel
}
