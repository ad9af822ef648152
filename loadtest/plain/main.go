// Command plain scores events as a team would that writes its consumer itself, in
// Go: kafka-go's Reader and Writer with settings that suit them, the SDK's events,
// encoding/json, and ONNX Runtime for one event at a time. A goroutine a core, to
// which events go by their partition, so that a key's stay in order.
//
// What is in its favour: it commits what was read whether it has been scored and
// written or not, so it may lose events where ours may not, and nobody has to
// swap its models.
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
	r, err := score(ctx, t)
	if err != nil {
		return err
	}
	return r.Write(os.Stdout)
}
