package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"tidemill.dev/examples/demo"
)

// demoWithin ends a demo that hangs. A machine with much other work needs more than five minutes for it.
const demoWithin = 15 * time.Minute

func demoCommand() command {
	return command{
		name:    "demo",
		summary: "show everything once, in a folder that is removed at the end",
		about: `It starts tidemill up on free ports and uses it as any program does, by commands and
by HTTP. It publishes events and reads them from Kafka, publishes one twice, and writes
a record that is no event. A trigger calls a function, which replies to one event and
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

// calledAs is how the caller can start this program again. A binary that go run has built is gone by then.
func calledAs(name string) string {
	if strings.Contains(filepath.ToSlash(name), "/go-build") {
		return "make build && bin/tidemill"
	}
	return name
}
