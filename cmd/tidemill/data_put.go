package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/parcel"
	"tidemill.dev/internal/remote"
)

func dataPutCommand() command {
	return command{
		name:    "data put",
		args:    "DATASET DIR|FILE",
		summary: "put files on a dataset as one commit, which is a new-data event",
		about: `Only what the store lacks is uploaded. Interrupted, give the same command again:
what was uploaded is there. Files that are on the branch and not in DIR stay, unless
--replace is given. A branch that holds just these files already is left as it is,
and no event is published.

` + atTheGate,
		examples: []example{
			{"tidemill data put bots/bot-42 ./bot-42", "the files of a folder, on main"},
			{"tidemill data put bots/bot-42 new.csv -m 'week 12'", "one more file"},
			{"tidemill data put bots/bot-42 ./bot-42 --replace --dry-run", "what would change if the folder were all there is"},
		},
		make: func() program { return &dataPut{output: "text"} },
	}
}

type dataPut struct {
	gate
	output                   string
	branch, message, subject string
	replace, dryRun          bool
}

func (p *dataPut) flags(f *flagSet) {
	f.text(&p.branch, "branch", "b", "BRANCH", "commit there (default main); one that is not there is made")
	f.text(&p.message, "message", "m", "TEXT", "what for")
	f.text(&p.subject, "subject", "s", "KEY", "the event's subject, if not the key that the dataset belongs to")
	f.yes(&p.replace, "replace", "remove from the branch what is not put")
	f.yes(&p.dryRun, "dry-run", "only say what would change")
	f.text(&p.output, "output", "o", "FORMAT", "text or json")
	p.gate.flags(f)
}

func (p *dataPut) accept(positional []string) error {
	if err := checkOutput(p.output); err != nil {
		return err
	}
	if err := wants(positional, "DATASET", "DIR"); err != nil {
		return err
	}
	v, err := parseVersion(positional[0])
	if err == nil && v.ref != "" {
		err = usagef("%q: a commit is put on a branch; name it by --branch %s", positional[0], v.ref)
	}
	return err
}

// putting is one call, on its way.
type putting struct {
	*dataPut
	g     *remote.Gateway
	dir   string
	asked api.CommitAsked
	files []api.File
	bytes int64 // of the files
	moved int64 // that the store lacked
	shown *carried
	began time.Time
}

func (p *dataPut) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enterQuietly(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	w := &putting{dataPut: p, g: g, dir: positional[1], shown: startCarried(s.stderr), began: time.Now(),
		asked: api.CommitAsked{Dataset: positional[0], Branch: p.branch, Request: rand.Text(), Message: p.message, Subject: p.subject, Replace: p.replace}}
	defer w.shown.stop()
	if err := w.scan(ctx); err != nil {
		return fmt.Errorf("put %s: %w", positional[1], err)
	}
	if p.dryRun {
		return w.compare(ctx, s)
	}
	committed, err := w.put(ctx)
	w.shown.stop()
	switch {
	case ctx.Err() != nil:
		return errors.New("put: interrupted, and nothing is committed for sure; give the same command again: what was uploaded is there")
	case err != nil:
		return fmt.Errorf("put %s: %w", positional[1], err)
	case p.output == "json":
		return writeIndented(s.stdout, committed)
	}
	return w.tell(s, &committed)
}

// scan reads what is to be put.
func (w *putting) scan(ctx context.Context) error {
	info, err := os.Stat(w.dir)
	if err != nil {
		return err
	}
	w.shown.next("reading", 0, 0)
	if info.IsDir() {
		w.files, err = parcel.Scan(ctx, w.dir, w.shown.add)
	} else {
		name := filepath.Base(w.dir)
		w.dir = filepath.Dir(w.dir)
		w.files, err = parcel.ScanFile(ctx, w.dir, name, w.shown.add)
	}
	if err == nil && len(w.files) == 0 {
		err = errors.New("there are no files in it, and a dataset holds files")
	}
	for i := range w.files {
		w.bytes += w.files[i].Size
	}
	return err
}

// put uploads what is missing and commits. What a collection has taken between
// the two is put again.
func (w *putting) put(ctx context.Context) (done api.Committed, err error) {
	changes := make([]api.Change, len(w.files))
	for i := range w.files {
		changes[i].File = w.files[i]
	}
	carrier := w.g.Carrier()
	carrier.Again, carrier.Moved = w.shown.trouble, func(_ int, bytes int64) { w.moved += bytes }
	for tries := 0; ; tries++ {
		w.shown.next("uploading", len(w.files), w.bytes)
		if err := carrier.Put(ctx, w.dir, w.files, w.shown.add); err != nil {
			return done, err
		}
		w.shown.next("committing", 0, 0)
		done, err = w.g.Commit(ctx, w.asked, changes)
		var problem *api.Problem
		if err == nil || tries > 0 || !errors.As(err, &problem) || problem.Type != api.ProblemBase+api.UnknownData {
			return done, err
		}
	}
}

func (w *putting) tell(s *session, c *api.Committed) error {
	where := fmt.Sprintf("%s on %s", harmless(c.Dataset), harmless(c.Branch))
	if c.Unchanged {
		_, err := fmt.Fprintf(s.stdout, "nothing has changed: %s holds these files already, at commit %s\n", where, shortCommit(c.ID))
		return err
	}
	_, err := fmt.Fprintf(s.stdout, "committed %s to %s: %s; it holds %s\nuploaded %s of %s in %s\n", shortCommit(c.ID), where, changesOf(&c.Commit), holding(&c.Commit),
		size(w.moved), size(w.bytes), time.Since(w.began).Round(time.Millisecond))
	return err
}
