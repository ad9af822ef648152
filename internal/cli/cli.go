package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
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

// run executes the command line. Tests call it as Main does.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 1 { // only the program itself calls itself with these arguments
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

// session is the environment of one call of the program.
type session struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
}

const (
	exitFailed = 1
	exitUsage  = 2
)

// errReported is returned if the command has already printed its errors.
var errReported = errors.New("failed; the reasons have been printed")

// report prints an error and returns the exit status.
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

// hint adds what a gateway does not know: how a command gets a token.
func hint(err error) string {
	var p *api.Problem
	if errors.As(err, &p) && p.Type == api.ProblemBase+api.Unauthenticated {
		return "; give one that counts by " + envToken + " or --token-file"
	}
	return ""
}

const exitAborted = 130 // exit status of shells for an end by SIGINT

const sayAfter = time.Second

// untilInterrupted returns a context that the first Ctrl-C or SIGTERM cancels, so that the stop
// order runs. The second one ends the process at once.
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
		// Most stops take less than a second. If one takes longer, say why.
		time.AfterFunc(sayAfter, func() {
			fmt.Fprintln(stderr, "tidemill: still stopping in good order; press Ctrl-C again to stop at once")
		})
		cancel()
		<-signals
		os.Exit(exitAborted)
	}()
	return ctx, cancel
}

func versionCommand() command {
	return command{
		name:    "version",
		summary: "say which build this is",
		examples: []example{
			{"tidemill version", "a line"},
			{"tidemill version -o json", "for a script"},
		},
		make: func() program { return &version{output: "text"} },
	}
}

type version struct{ output string }

func (v *version) flags(f *flagSet) {
	f.text(&v.output, "output", "o", "FORMAT", "text or json")
}

func (v *version) accept(positional []string) error {
	if err := checkOutput(v.output); err != nil {
		return err
	}
	return wants(positional)
}

// build is the build information of this binary.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisBuild() build {
	b := build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (v *version) run(_ context.Context, s *session, _ []string) error {
	b := thisBuild()
	if v.output == "json" {
		return json.NewEncoder(s.stdout).Encode(b)
	}
	changed := ""
	if b.Modified {
		changed = ", with local changes"
	}
	revision := ""
	if b.Revision != "" {
		revision = " (" + b.Revision[:min(12, len(b.Revision))] + changed + ")"
	}
	_, err := fmt.Fprintf(s.stdout, "tidemill %s%s, %s, %s\n", b.Version, revision, b.Go, b.Platform)
	return err
}

// demoWithin ends a demo that hangs. A busy machine may need more than five minutes.
const demoWithin = 15 * time.Minute

func demoCommand() command {
	return command{
		name:    "demo",
		summary: "show everything once, in a folder that is removed at the end",
		about: `It starts tidemill up on free ports and uses it as any program does, by commands and
by HTTP. It publishes events and reads them from Kafka, publishes one twice, and writes
a record that is not an event. A trigger calls a function, which replies to one event and
refuses another; that becomes a dead letter, which is replayed. Three bots get data:
a model is trained and judged for each, and one is refused. A worse model is refused too,
a champion is rolled back, and the origin of a model is shown. At the end thousands of
messages a second are answered while a champion changes. The exit status is 1 if an
event is lost, or answered twice or out of order. The source is examples/demo.`,
		examples: []example{{"tidemill demo", "takes about twenty seconds"}},
		make:     func() program { return &demoProgram{} },
	}
}

type demoProgram struct{}

func (*demoProgram) flags(*flagSet) {}

func (*demoProgram) accept(args []string) error { return wants(args) }

func (*demoProgram) run(interrupted context.Context, s *session, _ []string) error {
	ctx, cancel := context.WithTimeout(interrupted, demoWithin)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	err = demo.Run(ctx, demo.Options{Tidemill: self, Out: s.stdout})
	switch {
	case interrupted.Err() != nil:
		return errors.New("demo: interrupted")
	case err != nil:
		return fmt.Errorf("demo: %w; that must not happen: please report it", err)
	}
	fmt.Fprintf(s.stdout, "\nNext: %s up\n", calledAs(os.Args[0]))
	return nil
}

// calledAs returns the command that starts this program again. A binary of go run is removed at its
// end.
func calledAs(name string) string {
	if strings.Contains(filepath.ToSlash(name), "/go-build") {
		return "make build && bin/tidemill"
	}
	return name
}
