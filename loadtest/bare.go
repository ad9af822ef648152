package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"tidemill.dev/loadtest/internal/load"
	"tidemill.dev/loadtest/internal/task"
)

// runBareServer runs a net/http server that reads the body and answers 202. This server stores
// nothing, so no gateway written with net/http can be faster.
func runBareServer(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			w.WriteHeader(http.StatusAccepted)
		}
	})}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	fmt.Fprintln(stdout, l.Addr())
	err = errors.Join(serveCommands(stdin, stdout, task.Task{}), s.Close())
	if failed := <-served; !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(err, failed)
	}
	return err
}

// runGenerator runs the load generator's process. The process reports when it is warm, and measures
// when its parent sends a line.
func runGenerator(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 1 {
		return errors.New("load: give one load as JSON")
	}
	t, err := load.Parse(args[0])
	if err != nil {
		return err
	}
	g, err := load.Open(ctx, t)
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "warm")
	var told string
	if _, err := fmt.Fscanln(stdin, &told); err != nil {
		return errors.Join(fmt.Errorf("load: no line to begin on standard input: %w", err), g.Close())
	}
	r, err := g.Measure(ctx)
	if err == nil {
		err = r.Write(stdout)
	}
	return errors.Join(err, g.Close())
}
