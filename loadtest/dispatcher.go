package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"tidemill.dev/config"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
	"tidemill.dev/loadtest/internal/task"
)

// dispatcherTask is the argument of a dispatcher's process.
type dispatcherTask struct {
	Kafka   string
	Config  string
	Profile string // folder for profiles; empty for no profiles
	What    string // name of the measurement, for the profile's file name
}

// runDispatcher runs the dispatcher's process, wired like `tidemill serve dispatcher`. It reports
// when its triggers are ready.
func runDispatcher(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (err error) {
	var d dispatcherTask
	if len(args) != 1 {
		return errors.New("dispatcher: give one task as JSON")
	}
	if err := json.Unmarshal([]byte(args[0]), &d); err != nil {
		return fmt.Errorf("read the task %q: %w", args[0], err)
	}
	conf, err := config.Parse("the load test's config", []byte(d.Config))
	if err != nil {
		return err
	}
	p, err := platform.Open(ctx, platform.Options{Config: conf, OwnStreams: true,
		Addresses: config.Addresses{Kafka: d.Kafka}, Telemetry: &telemetry.Options{Version: "loadtest"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(context.WithoutCancel(ctx))) }()
	running, err := p.Dispatcher(ctx)
	if err != nil {
		return err
	}
	if err := running.Ready(ctx); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "ready")
	return serveCommands(stdin, stdout, task.Task{Do: roleDispatcher + "-" + d.What, Profile: d.Profile})
}
