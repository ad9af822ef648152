package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"tidemill.dev/config"
	"tidemill.dev/internal/ops/gctune"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
	"tidemill.dev/loadtest/internal/task"
)

// gatewayTask is the argument of a gateway's process.
type gatewayTask struct {
	Kafka, Redis string
	Store        string `json:",omitempty"` // store with models, which makes it answer for them
	Listen       string `json:",omitempty"` // address; empty for a free port
	ListenGRPC   string `json:",omitempty"` // address of gRPC; empty for none
	Stream       string // stream on which it stores events
	Dedupe       string
	Profile      string // folder for profiles; empty for no profiles
	What         string // name of the measurement, for the profile's file name
}

// runGateway runs the gateway's process, wired like `tidemill serve gateway`.
func runGateway(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (err error) {
	var g gatewayTask
	if len(args) != 1 {
		return errors.New("gateway: give one task as JSON")
	}
	if err := json.Unmarshal([]byte(args[0]), &g); err != nil {
		return fmt.Errorf("read the task %q: %w", args[0], err)
	}
	conf, err := g.config()
	if err != nil {
		return err
	}
	p, err := platform.Open(ctx, platform.Options{Config: conf, OwnStreams: true,
		Addresses: config.Addresses{Kafka: g.Kafka, Redis: g.Redis, Store: g.Store}, Telemetry: &telemetry.Options{Version: "loadtest"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(context.WithoutCancel(ctx))) }()
	door, err := p.Gateway(ctx, platform.GatewayOptions{Listen: cmp.Or(g.Listen, "127.0.0.1:0"), ListenGRPC: g.ListenGRPC})
	if err != nil {
		return err
	}
	watched, unwatch := context.WithCancel(ctx)
	defer unwatch()
	go gctune.Keep(watched, 32<<20) // as `tidemill serve gateway` does
	served := make(chan error, 1)
	go func() { served <- door.Serve(ctx) }()
	fmt.Fprintln(stdout, door.Addr())
	err = serveCommands(stdin, stdout, task.Task{Do: roleGateway + "-" + g.What, Profile: g.Profile})
	return errors.Join(err, door.Close(ctx), <-served)
}

func (g gatewayTask) config() (*config.Config, error) {
	return config.Parse("the load test's config", fmt.Appendf(nil,
		"version: 1\nstreams: {%s: {partitions: %d, dedupe: %q}}\n", g.Stream, partitions, g.Dedupe))
}
