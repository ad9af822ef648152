package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
)

const bite = 8 << 20

// eatMemory allocates the given amount of memory and writes to every page. It keeps the memory
// until it gets SIGTERM or is killed.
func eatMemory(ctx context.Context, text string, out io.Writer) error {
	most, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("read how many MiB: %w", err)
	}
	var held [][]byte
	for len(held)*bite < most<<20 && ctx.Err() == nil {
		piece := make([]byte, bite)
		for at := 0; at < len(piece); at += 4096 {
			piece[at] = 1
		}
		held = append(held, piece)
		if _, err := fmt.Fprintf(out, "%d MiB\n", len(held)*bite>>20); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return fmt.Errorf("asked to leave with %d MiB", len(held)*bite>>20)
}
