package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
	"tidemill.dev/loadtest/internal/task"
)

// laptopTask is the argument of a laptop's process.
type laptopTask struct {
	Dir     string // data folder
	Config  string
	Profile string // folder for profiles; empty for no profiles
}

// runLaptop runs everything in one process, wired like `tidemill up`.
func runLaptop(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (err error) {
	var l laptopTask
	if len(args) != 1 {
		return errors.New("laptop: give one task as JSON")
	}
	if err := json.Unmarshal([]byte(args[0]), &l); err != nil {
		return fmt.Errorf("read the task %q: %w", args[0], err)
	}
	conf, err := config.Parse("the load test's config", []byte(l.Config))
	if err != nil {
		return err
	}
	p, err := platform.Open(ctx, platform.Options{Config: conf, OwnStreams: true,
		Embedded: &embedded.Options{Dir: filepath.Join(l.Dir, "servers")}, Telemetry: &telemetry.Options{Version: "loadtest"},
		Runs: &platform.RunsOptions{Recipes: l.Dir, Data: l.Dir, Secrets: filepath.Join(l.Dir, "secrets"), Launch: true}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(context.WithoutCancel(ctx))) }()
	addr, served, err := openLaptop(ctx, p)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, addr)
	err = serveCommands(stdin, stdout, task.Task{Do: roleLaptop, Profile: l.Profile})
	return errors.Join(err, p.Close(context.WithoutCancel(ctx)), <-served)
}

func openLaptop(ctx context.Context, p *platform.Platform) (addr string, served chan error, err error) {
	d, err := p.Dispatcher(ctx)
	if err == nil {
		err = d.Ready(ctx)
	}
	if err == nil {
		_, err = p.Controller(ctx)
	}
	if err != nil {
		return "", nil, err
	}
	door, err := p.Gateway(ctx, platform.GatewayOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		return "", nil, err
	}
	served = make(chan error, 1)
	go func() { served <- door.Serve(ctx) }()
	return door.Addr(), served, nil
}
