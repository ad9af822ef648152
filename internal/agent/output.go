package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/parcel"
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
	files, err := parcel.Scan(ctx, out, nil)
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
