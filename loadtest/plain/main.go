// Command plain scores events as a team's own Go consumer would: with kafka-go's Reader and Writer
// and settings that suit them, the SDK's events, encoding/json, and ONNX Runtime for one event at a
// time. There is one goroutine per core. Each gets the events of some partitions, so that the
// events of a key stay in order.
//
// In its favour: it commits records before they are scored and written, so it may lose events,
// while our scorer may not. And it never has to swap a model.
package main

import (
	"context"
	"fmt"
	"os"

	"tidemill.dev/loadtest/internal/task"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "plain:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("give one task as JSON; `make loadtest` does")
	}
	t, err := task.ParseScoring(args[0])
	if err != nil {
		return err
	}
	r, err := runScore(ctx, t)
	if err != nil {
		return err
	}
	return r.Write(os.Stdout)
}
