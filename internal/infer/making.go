package infer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// make reads a model's files and makes it ready. Fetching waits for others, and
// all else for the processor: each has its own bound, so that neither starves.
func (c *Cache) make(ctx context.Context, k key) (m *loaded, err error) {
	begun := time.Now()
	defer func() { c.metrics.loaded(time.Since(begun), err) }()
	files, err := c.files(ctx, k.artifact)
	if err != nil {
		return nil, err
	}
	if len(files.model) > largeFile {
		if err := take(ctx, c.large); err != nil {
			return nil, err
		}
		defer give(c.large)
	}
	if err := take(ctx, c.loads); err != nil {
		return nil, err
	}
	defer give(c.loads)
	card, err := readCard(files.card)
	if err != nil {
		return nil, err
	}
	p, by, err := c.engines(k.engine, files.model)
	if err != nil {
		return nil, err
	}
	return ready(p, by, card)
}

// files are what a model consists of.
type files struct{ model, card []byte }

func (c *Cache) files(ctx context.Context, artifact string) (files, error) {
	if c.disk != nil {
		if err := take(ctx, c.loads); err != nil {
			return files{}, err
		}
		f, ok := c.disk.read(artifact)
		give(c.loads)
		if ok {
			return f, nil
		}
	}
	if err := take(ctx, c.fetches); err != nil {
		return files{}, err
	}
	defer give(c.fetches)
	f, err := c.fetch(ctx, artifact)
	if err == nil && c.disk != nil {
		c.disk.write(artifact, f)
	}
	return f, err
}

func (c *Cache) fetch(ctx context.Context, artifact string) (f files, err error) {
	f.model, err = c.o.Fetch(ctx, artifact, ModelFile, c.largest())
	if errors.Is(err, fs.ErrNotExist) {
		return f, fmt.Errorf("%w: artifact %s has no %s; the run has to write one into TIDEMILL_OUT", ErrUnfit, artifact, ModelFile)
	}
	if err != nil {
		return f, fmt.Errorf("fetch %s of artifact %s: %w", ModelFile, artifact, err)
	}
	f.card, err = c.o.Fetch(ctx, artifact, CardFile, maxCard)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, fmt.Errorf("fetch %s of artifact %s: %w", CardFile, artifact, err)
	}
	return f, nil
}

// least is how large a file may be whatever the budget.
const least = 64 << 20

// largest is how large a model's file may be. One that is larger than all models
// together may be would take the process, and every other model, with it.
func (c *Cache) largest() int64 { return min(maxModel, max(least, c.o.Memory)) }

func take(ctx context.Context, places chan struct{}) error {
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func give(places chan struct{}) { <-places }

func isLeft(err error) bool { return errors.Is(err, context.Canceled) || errors.Is(err, ErrClosed) }
