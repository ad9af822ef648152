// Command job is the program in the containers of the cluster's tests: a slow trainer, a trainer
// that needs too much memory, a distributed trainer, and a function. It knows the contract of a run
// and CloudEvents. It imports only the standard library, so that its image holds nothing else.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout)
	stop()
	var code exitCode
	if err != nil && !errors.As(err, &code) {
		fmt.Fprintln(os.Stderr, "error:", err)
		code = 1
	}
	os.Exit(int(code))
}

// exitCode is the exit code that the arguments ask for.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit with %d, as asked", int(c)) }

var errUsage = errors.New(`call it with one of
  exit CODE            end at once
  print                print the variables, and end with success
  eat MIB              hold so much memory until SIGTERM
  steps COUNT EVERY    train in steps that are saved, such as steps 10 200ms, and leave a model
  steps COUNT EVERY AT wait at that step until SIGTERM, unless it goes on from a step that was saved
  gather               meet the other workers and the parameter servers, and leave a model
  serve                answer each event with one, at PORT (8080)`)

func run(ctx context.Context, args []string, variable func(string) string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	switch verb, rest := args[0], args[1:]; {
	case verb == "exit" && len(rest) == 1:
		return exit(rest[0])
	case verb == "print" && len(rest) == 0:
		return printVariables(os.Environ(), out)
	case verb == "eat" && len(rest) == 1:
		return eatMemory(ctx, rest[0], out)
	case verb == "steps" && (len(rest) == 2 || len(rest) == 3):
		return stepsOf(ctx, rest, variable, out)
	case verb == "gather" && len(rest) == 0:
		return gather(ctx, variable, out)
	case verb == "serve" && len(rest) == 0:
		return serve(ctx, variable, out)
	}
	return errUsage
}

func exit(text string) error {
	code, err := strconv.ParseUint(text, 10, 7)
	if err != nil {
		return fmt.Errorf("read the exit code: %w", err)
	}
	if code == 0 {
		return nil
	}
	return exitCode(code)
}

func printVariables(all []string, out io.Writer) error {
	slices.Sort(all)
	for _, v := range all {
		if _, err := fmt.Fprintln(out, v); err != nil {
			return err
		}
	}
	return nil
}

func stepsOf(ctx context.Context, args []string, variable func(string) string, out io.Writer) error {
	count, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("read how many steps: %w", err)
	}
	every, err := time.ParseDuration(args[1])
	if err != nil || every <= 0 {
		return fmt.Errorf("read how long a step takes: %q is not a duration", args[1])
	}
	wait := count // by default it never waits
	if len(args) == 3 {
		if wait, err = strconv.Atoi(args[2]); err != nil {
			return fmt.Errorf("read at which step to wait: %w", err)
		}
	}
	f, err := foldersOf(variable)
	if err != nil {
		return err
	}
	return f.train(ctx, training{count, wait, every}, out)
}
