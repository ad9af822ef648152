package main

import (
	"context"
	"errors"
	"io"
)

var errInterrupted = errors.New("interrupted")

// untilDone is a reader that ends when the context does. Nothing calls back a
// read from a terminal or a pipe on which nobody writes, so a goroutine stays
// behind in it; the process is about to end, and its reader need not wait.
func untilDone(ctx context.Context, in io.Reader) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, in)
		w.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { w.CloseWithError(errInterrupted) })
	return r
}
