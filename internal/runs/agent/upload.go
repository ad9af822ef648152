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

// upload uploads the command's output.
func (a *attempt) upload(ctx context.Context) error {
	out := a.dirs.out()
	if err := inPlace(out); err != nil {
		return err
	}
	if err := checkSize(ctx, out, a.order.Plan.MaxOutput); err != nil {
		return err
	}
	files, err := transfer.Scan(ctx, out, nil)
	if err != nil {
		return &fault{permanent: ctx.Err() == nil, err: fmt.Errorf("the command's output cannot be kept: %w", err)}
	}
	if len(files) == 0 {
		return nil
	}
	if err := a.retryTransfer(ctx, func() error { return a.transferClient().Put(ctx, out, files, nil) }); err != nil {
		return fmt.Errorf("upload the command's output: %w", err)
	}
	a.made = files
	return nil
}

// inPlace refuses an output folder that the command has replaced. A link in its place could point
// to any file of the machine, without any limit of size.
func inPlace(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return permanent("the command has removed the folder %s: %w", filepath.Base(dir), shortenPath(err, dir))
	case !info.IsDir():
		return permanent("the command has put something else in the place of the folder %s: write into it, and leave it where it is", filepath.Base(dir))
	}
	return nil
}

// checkModel checks that the model exists if the recipe makes one.
func (a *attempt) checkModel() error {
	if a.order.Plan.Model == "" {
		return nil
	}
	info, err := os.Stat(filepath.Join(a.dirs.out(), modelName))
	switch {
	case err == nil && info.Mode().IsRegular():
		return nil
	case err == nil:
		return permanent("%s in TIDEMILL_OUT is not a file", modelName)
	}
	return permanent("the command wrote no %s into TIDEMILL_OUT, where there is %s", modelName, inventory(a.dirs.out()))
}

// inventory lists the files of a folder for an error.
func inventory(dir string) string {
	d, err := os.Open(dir)
	if err != nil {
		return "nothing that can be read"
	}
	defer d.Close()
	const shown = 8
	names, _ := d.Readdirnames(shown + 1) // the names that could be read are enough
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

// checkSize checks the size of a folder before its files are read.
func checkSize(ctx context.Context, dir string, most int64) error {
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
		return permanent("the command's output cannot be read: %w", shortenPath(err, dir))
	}
	return ctx.Err()
}

// shortenPath shortens the path in an error, which may have thousands of characters.
func shortenPath(err error, dir string) error {
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

// listedFile is the size of a file's entry in a list, without its name.
const listedFile = 100

const (
	scanEvery  = 3 * time.Second
	stableFor  = 500 * time.Millisecond
	scanFactor = 20 // a scan may take a 20th of the time
)

// checkpoints saves the command's checkpoint folder.
type checkpoints struct {
	dir    string
	save   func(context.Context) error
	note   func(string, ...any)
	seed   maphash.Seed
	saved  uint64 // fingerprint of the folder when it was saved
	failed string // last error in the log
}

// begin marks the folder as saved, because its files were just fetched.
func (c *checkpoints) begin() {
	c.seed = maphash.MakeSeed()
	c.saved, _ = c.fingerprint()
}

// watch saves the folder while the command runs, after each change that is followed by a short
// pause. A file that is written all the time is never complete, so it is not saved.
func (c *checkpoints) watch(ctx context.Context) {
	wait := scanEvery
	for retry.Sleep(ctx, wait) == nil {
		from := time.Now()
		is, some := c.fingerprint()
		wait = max(scanEvery, time.Since(from)*scanFactor)
		if !some || is == c.saved || retry.Sleep(ctx, stableFor) != nil {
			continue
		}
		if again, _ := c.fingerprint(); again == is {
			c.saveFolder(ctx, is)
		}
	}
}

// finish saves the folder after the command has ended.
func (c *checkpoints) finish(ctx context.Context) {
	if is, some := c.fingerprint(); some && is != c.saved {
		c.saveFolder(ctx, is)
	}
}

// saveFolder saves the folder. If it changes meanwhile, the saved files may be inconsistent. Then
// the save does not count, and the next scan saves again.
func (c *checkpoints) saveFolder(ctx context.Context, is uint64) {
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

// fingerprint returns a fingerprint of the names, sizes and times of the folder's files, and whether
// there is any file.
func (c *checkpoints) fingerprint() (is uint64, some bool) {
	var h maphash.Hash
	h.SetSeed(c.seed)
	_ = filepath.WalkDir(c.dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // the folder is changing
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

// saveCheckpoint uploads the folder's files, and makes them the checkpoint of the run.
func (a *attempt) saveCheckpoint(ctx context.Context) error {
	dir := a.dirs.checkpoint()
	if err := inPlace(dir); err != nil {
		return err
	}
	before, _ := a.checkpoints.fingerprint()
	files, err := transfer.Scan(ctx, dir, nil)
	if is, _ := a.checkpoints.fingerprint(); is != before {
		return errChanging
	}
	if err != nil {
		return err
	}
	err = a.retryTransfer(ctx, func() error { return a.transferClient().Put(ctx, dir, files, nil) })
	if is, _ := a.checkpoints.fingerprint(); is != before {
		return errChanging
	}
	if err != nil {
		return err
	}
	return a.client.postJSON(ctx, "/checkpoint", api.CheckpointTaken{Files: files}, &api.TreeRef{})
}
