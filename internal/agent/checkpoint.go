package agent

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"path/filepath"
	"time"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/parcel"
)

const (
	scanEvery  = 3 * time.Second
	stableFor  = 500 * time.Millisecond
	scanFactor = 20 // a scan may take a 20th of the time
)

// checkpoints saves what the command keeps to go on from.
type checkpoints struct {
	dir    string
	save   func(context.Context) error
	note   func(string, ...any)
	seed   maphash.Seed
	saved  uint64 // the folder's look when it was saved
	failed string // what was told of last
}

// begin takes the folder as it is for saved: what lies in it was got.
func (c *checkpoints) begin() {
	c.seed = maphash.MakeSeed()
	c.saved, _ = c.look()
}

// watch saves the folder while the command runs, when it has changed and then
// kept still for a moment. What is written without a pause is never seen whole:
// its next change is waited for.
func (c *checkpoints) watch(ctx context.Context) {
	wait := scanEvery
	for pause(ctx, wait) == nil {
		from := time.Now()
		is, some := c.look()
		wait = max(scanEvery, time.Since(from)*scanFactor)
		if !some || is == c.saved || pause(ctx, stableFor) != nil {
			continue
		}
		if again, _ := c.look(); again == is {
			c.take(ctx, is)
		}
	}
}

// finish saves it once more, when nobody writes any more.
func (c *checkpoints) finish(ctx context.Context) {
	if is, some := c.look(); some && is != c.saved {
		c.take(ctx, is)
	}
}

// take saves the folder. If it has changed meanwhile, what was saved may be of
// two times; then nothing was, and the next scan sees it again.
func (c *checkpoints) take(ctx context.Context, is uint64) {
	err := c.save(ctx)
	switch {
	case err == nil:
		c.saved, c.failed = is, ""
	case errors.Is(err, errChanging) || ctx.Err() != nil:
	case err.Error() != c.failed:
		c.failed = err.Error()
		c.note("the checkpoint cannot be saved: %v", err)
	}
}

// look is a number that differs when the folder does, by the names, sizes and
// times of its files, and whether there is any.
func (c *checkpoints) look() (is uint64, some bool) {
	var h maphash.Hash
	h.SetSeed(c.seed)
	_ = filepath.WalkDir(c.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // it was there a moment ago: it changes
		}
		if info, err := d.Info(); err == nil {
			some = true
			fmt.Fprintf(&h, "%q %d %d %v\n", name, info.Size(), info.ModTime().UnixNano(), info.Mode())
		}
		return nil
	})
	return h.Sum64(), some
}

var errChanging = errors.New("it changes while it is read")

// saveCheckpoint puts the folder's files, and has the run go on from them.
func (a *attempt) saveCheckpoint(ctx context.Context) error {
	dir := a.dirs.checkpoint()
	if err := inPlace(dir); err != nil {
		return err
	}
	before, _ := a.checkpoints.look()
	files, err := parcel.Scan(ctx, dir, nil)
	if is, _ := a.checkpoints.look(); is != before {
		return errChanging
	}
	if err != nil {
		return err
	}
	err = a.carry(ctx, func() error { return a.parcels().Put(ctx, dir, files, nil) })
	if is, _ := a.checkpoints.look(); is != before {
		return errChanging
	}
	if err != nil {
		return err
	}
	return a.door.tell(ctx, "/checkpoint", api.CheckpointTaken{Files: files}, &api.TreeRef{})
}
