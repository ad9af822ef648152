package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tidemill.dev/internal/api"
)

func dataGetCommand() command {
	return command{
		name:    "data get",
		args:    "DATASET[@REF] DIR [PATH]",
		summary: "get the files of a dataset into a folder",
		about: aboutRefs + `

With PATH only that file, or what is in that folder, is got. Interrupted, give the
same command again: a file that is there and is the right one is kept. One that is
there and differs is an error, unless --replace is given.

` + atTheGate,
		examples: []example{
			{"tidemill data get bots/bot-42 ./bot-42", "all of it, as it is on main"},
			{"tidemill data get bots/bot-42@3f9ac2 ./before train", "a folder, as it was in a commit"},
		},
		make: func() program { return &dataGet{} },
	}
}

type dataGet struct {
	gate
	replace bool
}

func (p *dataGet) flags(f *flagSet) {
	f.yes(&p.replace, "replace", "write over files that are there and differ")
	p.gate.flags(f)
}

func (p *dataGet) accept(positional []string) error {
	if len(positional) > 0 {
		if _, err := parseVersion(positional[0]); err != nil {
			return err
		}
	}
	return between(positional, 2, "DATASET", "DIR", "PATH")
}

func (p *dataGet) run(ctx context.Context, s *session, positional []string) error {
	v, err := parseVersion(positional[0])
	if err != nil {
		return err
	}
	g, done, err := p.enterQuietly(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	path, began := "", time.Now()
	if len(positional) > 2 {
		path = positional[2]
	}
	var files []api.File
	bytes := int64(0)
	c, err := g.Files(ctx, v.dataset, v.ref, path, func(f api.File) error {
		files, bytes = append(files, f), bytes+f.Size
		return nil
	})
	switch {
	case err != nil:
		return err
	case len(files) == 0 && path != "":
		return fmt.Errorf("get %s: commit %s has no file and no folder %s; tidemill data ls %s lists its files", positional[0], shortCommit(c.ID), path, positional[0])
	}
	shown, moved := startCarried(s.stderr), int64(0)
	defer shown.stop()
	shown.next("getting", len(files), bytes)
	carrier := g.Carrier()
	carrier.Replace, carrier.Again, carrier.Moved = p.replace, shown.trouble, func(_ int, n int64) { moved += n }
	err = carrier.Get(ctx, positional[1], files, shown.add)
	shown.stop()
	switch {
	case ctx.Err() != nil:
		return errors.New("get: interrupted; give the same command again: what was got is kept")
	case err != nil:
		return fmt.Errorf("get %s: %w", positional[0], err)
	}
	fmt.Fprintf(s.stdout, "got %s, %s, of commit %s into %s: downloaded %s in %s\n", count(len(files), "file"), size(bytes), shortCommit(c.ID), positional[1],
		size(moved), time.Since(began).Round(time.Millisecond))
	return nil
}
