package agent

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/data/transfer"
)

const modelName = "model.onnx"

// upload brings away what the command has made.
func (a *attempt) upload(ctx context.Context) error {
	out := a.dirs.out()
	if err := inPlace(out); err != nil {
		return err
	}
	if err := fits(ctx, out, a.order.Plan.MaxOutput); err != nil {
		return err
	}
	files, err := transfer.Scan(ctx, out, nil)
	if err != nil {
		return &fault{permanent: ctx.Err() == nil, err: fmt.Errorf("what the command made cannot be kept: %w", err)}
	}
	if len(files) == 0 {
		return nil
	}
	if err := a.carry(ctx, func() error { return a.parcels().Put(ctx, out, files, nil) }); err != nil {
		return fmt.Errorf("upload what the command made: %w", err)
	}
	a.made = files
	return nil
}

// inPlace refuses a folder that the command has put something else in the place
// of: a link there would lead to anybody's files, past all bounds.
func inPlace(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return permanent("the command has removed the folder %s: %w", filepath.Base(dir), brief(err, dir))
	case !info.IsDir():
		return permanent("the command has put something else in the place of the folder %s: write into it, and leave it where it is", filepath.Base(dir))
	}
	return nil
}

// complete checks that what the recipe makes is there.
func (a *attempt) complete() error {
	if a.order.Plan.Model == "" {
		return nil
	}
	info, err := os.Stat(filepath.Join(a.dirs.out(), modelName))
	switch {
	case err == nil && info.Mode().IsRegular():
		return nil
	case err == nil:
		return permanent("%s in TIDEMILL_OUT is no file", modelName)
	}
	return permanent("the command wrote no %s into TIDEMILL_OUT, where there is %s", modelName, inventory(a.dirs.out()))
}

// inventory says what is in a folder instead.
func inventory(dir string) string {
	d, err := os.Open(dir)
	if err != nil {
		return "nothing that can be read"
	}
	defer d.Close()
	const shown = 8
	names, _ := d.Readdirnames(shown + 1) // as many as there are will do
	if len(names) == 0 {
		return "nothing"
	}
	slices.Sort(names)
	for i := range names {
		names[i] = fmt.Sprintf("%.60q", names[i])
	}
	if len(names) > shown {
		names[shown] = "more"
	}
	return strings.Join(names, ", ")
}

var errTooMuch = errors.New("too much")

// fits looks whether a folder can be kept, before all of it is read.
func fits(ctx context.Context, dir string, most int64) error {
	files, bytes, listed := 0, int64(0), int64(0)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files++
		bytes += info.Size()
		listed += int64(len(name)-len(dir)) + listedFile
		if most > 0 && bytes > most || listed > api.MaxFinish {
			return errTooMuch
		}
		return ctx.Err()
	})
	switch {
	case errors.Is(err, errTooMuch) && listed > api.MaxFinish:
		return permanent("the command made more than %d files, and they cannot even be listed: pack them into fewer", files)
	case errors.Is(err, errTooMuch):
		return permanent("the command made more than the %d bytes that its output may have (maxOutput)", most)
	case err != nil && ctx.Err() == nil:
		return permanent("what the command made cannot be read: %w", brief(err, dir))
	}
	return ctx.Err()
}

// brief is an error that does not repeat a path of thousands of letters.
func brief(err error, dir string) error {
	var p *fs.PathError
	if !errors.As(err, &p) {
		return err
	}
	const shown = 120
	name := strings.TrimPrefix(p.Path, dir+string(filepath.Separator))
	if len(name) > shown {
		name = name[:shown] + "…"
	}
	return fmt.Errorf("%s: %w", name, p.Err)
}

// listedFile is how long a file is in a list, besides its name.
const listedFile = 100

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
	for retry.Sleep(ctx, wait) == nil {
		from := time.Now()
		is, some := c.look()
		wait = max(scanEvery, time.Since(from)*scanFactor)
		if !some || is == c.saved || retry.Sleep(ctx, stableFor) != nil {
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
	files, err := transfer.Scan(ctx, dir, nil)
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
