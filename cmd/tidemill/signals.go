package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const exitAborted = 130 // as a shell says of what SIGINT ended

const sayAfter = time.Second

// untilInterrupted gives a context that the first Ctrl-C or SIGTERM ends, so
// that the stop order runs. The second one ends the process where it stands.
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
		// Most stop before anybody wonders; those who wait shall know for what.
		time.AfterFunc(sayAfter, func() {
			fmt.Fprintln(stderr, "tidemill: still stopping in good order; Ctrl-C once more stops at once")
		})
		cancel()
		<-signals
		os.Exit(exitAborted)
	}()
	return ctx, cancel
}
