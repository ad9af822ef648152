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

// bare is the process of a net/http server that reads the body, answers 202 and
// has nothing behind it: what no door written with net/http can outrun.
func bare(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
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
	err = errors.Join(leash(stdin, stdout, task.Task{}), s.Close())
	if failed := <-served; !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(err, failed)
	}
	return err
}

// generate is the load generator's process: it says that it is warm, and what
// it measured when it is told to.
func generate(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
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
		return errors.Join(fmt.Errorf("load: nobody said to begin: %w", err), g.Close())
	}
	r, err := g.Measure(ctx)
	if err == nil {
		err = r.Write(stdout)
	}
	return errors.Join(err, g.Close())
}
