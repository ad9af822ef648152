package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/parcel"
)

// fetch lays everything down that the command is to find.
func (a *attempt) fetch(ctx context.Context) error {
	for _, part := range []struct {
		what string
		get  func(context.Context) error
	}{
		{"the events", a.fetchEvents},
		{"the inputs", a.fetchInputs},
		{"the champion", a.fetchChampion},
		{"the checkpoint", a.fetchCheckpoint},
	} {
		if err := part.get(ctx); err != nil {
			return fmt.Errorf("fetch %s: %w", part.what, err)
		}
	}
	return nil
}

func (a *attempt) fetchChampion(ctx context.Context) error {
	c := a.order.Champion
	if c == nil && !a.contained() {
		return nil // an engine mounts only what is there
	}
	if err := os.Mkdir(a.dirs.champion(), 0o755); err != nil || c == nil {
		return err
	}
	return a.lay(ctx, a.dirs.champion(), c.Tree, a.o.Cache)
}

func (a *attempt) fetchCheckpoint(ctx context.Context) error {
	c := a.order.Checkpoint
	if c == nil {
		return nil
	}
	a.where.ResumedFrom = c.Tree
	return a.lay(ctx, a.dirs.checkpoint(), c.Tree, "")
}

func (a *attempt) fetchInputs(ctx context.Context) error {
	all := a.order.Plan.Inputs
	for i := range all {
		if err := a.fetchInput(ctx, &all[i]); err != nil {
			return fmt.Errorf("%s: %w", all[i].Name, err)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return lock(a.dirs.in(), nil)
}

// fetchInput makes the input's folder, and fills it.
func (a *attempt) fetchInput(ctx context.Context, in *tidemill.Input) error {
	if !filepath.IsLocal(in.Name) || in.Name != filepath.Base(in.Name) {
		return permanent("%q is no name for a folder", in.Name)
	}
	dir := filepath.Join(a.dirs.in(), in.Name)
	switch {
	case in.URI != "":
		return a.fetchURI(ctx, dir, in)
	case in.Tree != "":
		return a.lay(ctx, dir, in.Tree, a.o.Cache)
	}
	return os.Mkdir(dir, 0o555) // the dataset holds nothing yet
}

// lay lays a tree down. From a cache its files are shared, and so read-only;
// without one they are the attempt's own.
func (a *attempt) lay(ctx context.Context, dir, tree, cache string) error {
	files, err := a.files(ctx, tree)
	if err != nil {
		return err
	}
	client := a.parcels()
	client.Cache, client.Replace = cache, true
	if err := a.carry(ctx, func() error { return client.Get(ctx, dir, files, nil) }); err != nil {
		return err
	}
	if cache == "" && dir == a.dirs.checkpoint() {
		return nil
	}
	return lock(dir, files)
}

func (a *attempt) parcels() *parcel.Client {
	return &parcel.Client{Base: a.door.base, HTTP: a.door.http, Sign: a.door.sign}
}

// carry moves files, and begins again while what fails may pass: what is there
// is not moved twice.
func (a *attempt) carry(ctx context.Context, move func() error) error {
	for {
		err := move()
		if err == nil || a.door.heed(err) == nil || !parcel.Passes(ctx, err) || pause(ctx, longestWait) != nil {
			return err
		}
	}
}

// files lists a tree.
func (a *attempt) files(ctx context.Context, tree string) (all []api.File, err error) {
	err = a.door.insist(ctx, said{path: "/files?tree=" + url.QueryEscape(tree)}, func(r io.Reader) error {
		all = all[:0] // a try before may have ended amid
		for d := json.NewDecoder(r); ; {
			var f api.File
			err := d.Decode(&f)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			all = append(all, f)
		}
	})
	return all, err
}

// fetchEvents writes the newest cause, and all causes. A run that one event
// asked for has it in its order.
func (a *attempt) fetchEvents(ctx context.Context) error {
	newest := append([]byte(a.order.Event), '\n')
	if a.order.Causes == 1 && len(a.order.Event) > 0 {
		if err := os.WriteFile(a.dirs.events(), newest, 0o444); err != nil {
			return err
		}
		if os.Link(a.dirs.events(), a.dirs.event()) == nil {
			return nil
		}
		return os.WriteFile(a.dirs.event(), newest, 0o444) // not every file system links
	}
	err := a.door.insist(ctx, said{path: "/events"}, func(r io.Reader) error {
		last, err := writeLines(a.dirs.events(), r)
		if len(last) > 0 {
			newest = last
		}
		return err
	})
	if err != nil {
		return err
	}
	if len(newest) == 1 {
		newest = []byte("null\n") // the facts that asked are gone
	}
	return os.WriteFile(a.dirs.event(), newest, 0o444)
}

// writeLines copies lines into a file, and tells the last.
func writeLines(name string, from io.Reader) (last []byte, err error) {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, &fault{err: err}
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return nil, &fault{err: err}
	}
	k := &keepLast{}
	_, err = io.Copy(io.MultiWriter(f, k), from)
	return k.line(), errors.Join(err, f.Close())
}

// stage takes the time of a part of the attempt.
func (a *attempt) stage(name string, do func() error) error {
	from := time.Now()
	err := do()
	a.stages = append(a.stages, tidemill.Stage{Name: name, Seconds: time.Since(from).Seconds()})
	return err
}
