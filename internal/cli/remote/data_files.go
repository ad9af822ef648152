package remote

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/data/transfer"
	"tidemill.dev/internal/gateway/client"
)

// listFiles prints the files of a version while it receives them: there may be millions.
func listFiles(ctx context.Context, call *call) error {
	v, err := parseVersion(call.positional[0])
	if err != nil {
		return err
	}
	out := bufio.NewWriter(call.Stdout)
	say := lineShower(out, call.json, func(f api.File) string { return fmt.Sprintf("%10s  %s", show.Size(f.Size), show.Harmless(f.Path)) })
	files, bytes := 0, int64(0)
	c, err := call.g.Files(ctx, v.dataset, v.ref, call.optional(1), func(f api.File) error {
		files, bytes = files+1, bytes+f.Size
		return say(f)
	})
	if err = errors.Join(err, out.Flush()); err != nil {
		return err
	}
	if !call.json {
		fmt.Fprintf(call.Stderr, "%s, %s, of commit %s on %s\n", show.Count(files, "file"), show.Size(bytes), shortCommit(c.ID), show.Harmless(c.Branch))
	}
	return nil
}

// lineShower returns a function that prints one item a line, as JSON or as text.
func lineShower[T any](w io.Writer, asJSON bool, text func(T) string) func(T) error {
	if asJSON {
		return func(v T) error {
			line, err := json.Marshal(v)
			if err == nil {
				_, err = w.Write(append(show.HarmlessJSON(line), '\n'))
			}
			return err
		}
	}
	return func(v T) error {
		_, err := fmt.Fprintln(w, text(v))
		return err
	}
}

func dataDiffCommand() command.Command {
	return command.Command{
		Name:    "data diff",
		Args:    "DATASET FROM [TO]",
		Summary: "list the files that differ between two versions of a dataset",
		About: `+ was added, - was removed, ~ has changed. FROM and TO are branches, or beginnings of
commit ids. Without TO it is the branch main.`,
		Examples: []command.Example{
			{"tidemill data diff bots/bot-42 3f9ac2 main", "changes since that commit"},
			{"tidemill data diff bots/bot-42 main next -o json", "one file per line, with its old and new state"},
		},
		Make: func() command.Program { return &request{json: true, do: diffData} },
	}
}

func diffData(ctx context.Context, c *call) error {
	out, differ := bufio.NewWriter(c.Stdout), 0
	say := lineShower(out, c.json, differenceText)
	err := c.g.Diff(ctx, c.positional[0], c.positional[1], c.optional(2), func(d api.Difference) error { differ++; return say(d) })
	if err = errors.Join(err, out.Flush()); err != nil {
		return err
	}
	if !c.json {
		fmt.Fprintf(c.Stderr, "%s differ\n", show.Count(differ, "file"))
	}
	return nil
}

func differenceText(d api.Difference) string {
	switch {
	case d.Was == nil:
		return fmt.Sprintf("+ %s  %s", show.Harmless(d.Path), show.Size(d.Is.Size))
	case d.Is == nil:
		return "- " + show.Harmless(d.Path)
	}
	return fmt.Sprintf("~ %s  %s, was %s", show.Harmless(d.Path), show.Size(d.Is.Size), show.Size(d.Was.Size))
}

func dataPutCommand() command.Command {
	return command.Command{
		Name:    "data put",
		Daily:   true,
		Args:    "DATASET DIR|FILE",
		Summary: "put files on a dataset as one commit, which is a new-data event",
		About: `It uploads only objects that the store lacks. After an interruption, give the same
command again: it continues. Files of the branch that are not in DIR stay, unless
--replace is given. If the branch already has exactly these files, nothing is
committed and no event is published.`,
		Examples: []command.Example{
			{"tidemill data put bots/bot-42 ./bot-42", "the files of a folder, on main"},
			{"tidemill data put bots/bot-42 new.csv -m 'week 12'", "one more file"},
			{"tidemill data put bots/bot-42 ./bot-42 --replace --dry-run", "what would change if main had only these files"},
		},
		Make: func() command.Program {
			p := &dataPut{}
			return &request{json: true, quiet: true, flags: p.flags, accept: p.accept, do: p.do}
		},
	}
}

type dataPut struct {
	branch, message, subject string
	replace, dryRun          bool
}

func (p *dataPut) flags(f *command.FlagSet) {
	f.Text(&p.branch, "branch", "b", "BRANCH", "branch to commit to (default main); it is made if it does not exist")
	f.Text(&p.message, "message", "m", "TEXT", "message of the commit")
	f.Text(&p.subject, "subject", "s", "KEY", "subject of the event (default: the key that owns the dataset)")
	f.Yes(&p.replace, "replace", "remove files from the branch that are not put")
	f.Yes(&p.dryRun, "dry-run", "only show what would change")
}

func (p *dataPut) accept(positional []string) error {
	v, err := parseVersion(positional[0])
	if err == nil && v.ref != "" {
		err = command.Usagef("%q: a commit goes to a branch; give it by --branch %s", positional[0], v.ref)
	}
	return err
}

// putting is the state of one put.
type putting struct {
	*dataPut
	g     *client.Gateway
	dir   string
	asked api.CommitAsked
	files []api.File
	bytes int64 // size of all files
	moved int64 // bytes that the store did not have
	shown *show.Carried
	began time.Time
}

func (p *dataPut) do(ctx context.Context, c *call) error {
	w := &putting{dataPut: p, g: c.g, dir: c.positional[1], shown: show.StartCarried(c.Stderr), began: time.Now(),
		asked: api.CommitAsked{Dataset: c.positional[0], Branch: p.branch, Request: rand.Text(), Message: p.message, Subject: p.subject, Replace: p.replace}}
	defer w.shown.Stop()
	if err := w.scan(ctx); err != nil {
		return fmt.Errorf("put %s: %w", c.positional[1], err)
	}
	if p.dryRun {
		return w.compare(ctx, c)
	}
	committed, err := w.put(ctx)
	w.shown.Stop()
	switch {
	case ctx.Err() != nil:
		return errors.New("put: interrupted, perhaps before the commit; give the same command again: it continues")
	case err != nil:
		return fmt.Errorf("put %s: %w", c.positional[1], err)
	case c.json:
		return writeIndented(c.Stdout, committed)
	}
	return w.tell(c.Session, &committed)
}

// scan reads the files to be put.
func (w *putting) scan(ctx context.Context) error {
	info, err := os.Stat(w.dir)
	if err != nil {
		return err
	}
	w.shown.Next("reading", 0, 0)
	if info.IsDir() {
		w.files, err = transfer.Scan(ctx, w.dir, w.shown.Add)
	} else {
		name := filepath.Base(w.dir)
		w.dir = filepath.Dir(w.dir)
		w.files, err = transfer.ScanFile(ctx, w.dir, name, w.shown.Add)
	}
	if err == nil && len(w.files) == 0 {
		err = errors.New("it has no files, and a dataset needs files")
	}
	for i := range w.files {
		w.bytes += w.files[i].Size
	}
	return err
}

// put uploads the missing files and commits. If a garbage collection removes one before the commit,
// put uploads it again.
func (w *putting) put(ctx context.Context) (done api.Committed, err error) {
	changes := make([]api.Change, len(w.files))
	for i := range w.files {
		changes[i].File = w.files[i]
	}
	w.shown.Next("checking", 0, 0)
	if err := w.g.CheckCommit(ctx, w.asked, changes); err != nil { // before the upload, which may take long
		return done, err
	}
	carrier := w.g.Carrier()
	carrier.Again, carrier.Moved = w.shown.Trouble, func(_ int, bytes int64) { w.moved += bytes }
	for tries := 0; ; tries++ {
		w.shown.Next("uploading", len(w.files), w.bytes)
		if err := carrier.Put(ctx, w.dir, w.files, w.shown.Add); err != nil {
			return done, err
		}
		w.shown.Next("committing", 0, 0)
		done, err = w.g.Commit(ctx, w.asked, changes)
		var problem *api.Problem
		if err == nil || tries > 0 || !errors.As(err, &problem) || problem.Type != api.ProblemBase+api.UnknownData {
			return done, err
		}
	}
}

func (w *putting) tell(s *command.Session, c *api.Committed) error {
	where := fmt.Sprintf("%s on %s", show.Harmless(c.Dataset), show.Harmless(c.Branch))
	if c.Unchanged {
		_, err := fmt.Fprintf(s.Stdout, "nothing has changed: %s has these files already, at commit %s\n", where, shortCommit(c.ID))
		return err
	}
	_, err := fmt.Fprintf(s.Stdout, "committed %s to %s: %s; it has %s\nuploaded %s of %s in %s\n", shortCommit(c.ID), where, changesOf(&c.Commit), holding(&c.Commit),
		show.Size(w.moved), show.Size(w.bytes), time.Since(w.began).Round(time.Millisecond))
	return err
}

func dataGetCommand() command.Command {
	return command.Command{
		Name:    "data get",
		Args:    "DATASET[@REF] DIR [PATH]",
		Summary: "get the files of a dataset into a folder",
		About: aboutRefs + `

With PATH it gets only that file or folder. After an interruption, give the same
command again: files that are complete are kept. A file that exists and differs is an
error, unless --replace is given.`,
		Examples: []command.Example{
			{"tidemill data get bots/bot-42 ./bot-42", "all files of main"},
			{"tidemill data get bots/bot-42@3f9ac2 ./before train", "a folder of an older commit"},
		},
		Make: func() command.Program {
			p := &dataGet{}
			return &request{quiet: true, flags: p.flags, accept: acceptDataset, do: p.do}
		},
	}
}

type dataGet struct{ replace bool }

func (p *dataGet) flags(f *command.FlagSet) { replaceFlag(f, &p.replace) }

// replaceFlag adds the flag of the commands that download files.
func replaceFlag(f *command.FlagSet, p *bool) {
	f.Yes(p, "replace", "overwrite files that exist and differ")
}

func (p *dataGet) do(ctx context.Context, call *call) error {
	v, err := parseVersion(call.positional[0])
	if err != nil {
		return err
	}
	path, began := call.optional(2), time.Now()
	var files []api.File
	c, err := call.g.Files(ctx, v.dataset, v.ref, path, func(f api.File) error { files = append(files, f); return nil })
	switch {
	case err != nil:
		return err
	case len(files) == 0 && path != "":
		return fmt.Errorf("get %s: commit %s has no file and no folder %s; tidemill data ls %s lists its files", call.positional[0], shortCommit(c.ID), path, call.positional[0])
	}
	d := downloading{g: call.g, name: call.positional[0], dir: call.positional[1], replace: p.replace, began: began}
	return d.get(ctx, call.Session, files, "of commit "+shortCommit(c.ID))
}

// downloading is a download of files into a folder.
type downloading struct {
	g         *client.Gateway
	name, dir string // name of the source, as the user wrote it, and the folder
	replace   bool   // whether files that exist and differ are overwritten
	began     time.Time
}

// get downloads files, shows the progress, and prints the result. The parameter of says where the
// files are from.
func (d *downloading) get(ctx context.Context, s *command.Session, files []api.File, of string) error {
	bytes, moved := int64(0), int64(0)
	for i := range files {
		bytes += files[i].Size
	}
	shown := show.StartCarried(s.Stderr)
	defer shown.Stop()
	shown.Next("getting", len(files), bytes)
	carrier := d.g.Carrier()
	carrier.Replace, carrier.Again, carrier.Moved = d.replace, shown.Trouble, func(_ int, n int64) { moved += n }
	err := carrier.Get(ctx, d.dir, files, shown.Add)
	shown.Stop()
	switch {
	case ctx.Err() != nil:
		return errors.New("get: interrupted; give the same command again: it continues")
	case err != nil:
		return fmt.Errorf("get %s: %w", d.name, err)
	}
	_, err = fmt.Fprintf(s.Stdout, "got %s, %s, %s into %s: downloaded %s in %s\n", show.Count(len(files), "file"), show.Size(bytes), of, d.dir,
		show.Size(moved), time.Since(d.began).Round(time.Millisecond))
	return err
}

// aboutGet is the end of the help of the commands that download files.
const aboutGet = `After an interruption, give the same command again: files that are complete are kept. A
file that exists and differs is an error, unless --replace is given.`

func modelsGetCommand() command.Command {
	return command.Command{
		Name:    "models get",
		Args:    "MODEL[@VERSION] DIR",
		Summary: "download the files of a version into a folder",
		About: `VERSION is a number, champion, previous (the champion before) or newest. Without it the
files of the champion are downloaded. They are the files that its run has made.

` + aboutGet,
		Examples: []command.Example{
			{"tidemill models get intent/bot-42 ./model", "the files of the champion"},
			{"tidemill models get intent/bot-42@newest ./model --replace", "the newest version, over the files of another"},
		},
		Make: func() command.Program {
			p := &artifactGet{list: modelFiles}
			return &request{quiet: true, flags: p.flags, accept: acceptVersion, do: p.do}
		},
	}
}

// modelFiles lists the files of a version.
func modelFiles(ctx context.Context, g *client.Gateway, version string) (files api.ArtifactFiles, of string, err error) {
	model, which, err := versionArg(version)
	if err != nil {
		return files, "", err
	}
	whole, err := g.Model(ctx, model, "")
	if err != nil {
		return files, "", err
	}
	which = cmp.Or(which, tidemill.WhichChampion)
	if _, err := findVersion(&whole, which); err != nil {
		return files, "", err
	}
	files, err = g.ModelFiles(ctx, model, which)
	return files, "of version " + show.Harmless(tidemill.VersionName(files.Model, files.Version)), err
}

func runsGetCommand() command.Command {
	return command.Command{
		Name:    "runs get",
		Args:    "RUN DIR",
		Summary: "download the files that a run has made into a folder",
		About: `Six letters of the run's id are enough. The files are those that the command left in
TIDEMILL_OUT.

` + aboutGet,
		Examples: []command.Example{
			{"tidemill runs get 3k7mzq ./made", "the files of one run"},
		},
		Make: func() command.Program {
			p := &artifactGet{list: runFiles}
			return &request{quiet: true, flags: p.flags, do: p.do}
		},
	}
}

// runFiles lists the files that a run has made.
func runFiles(ctx context.Context, g *client.Gateway, run string) (api.ArtifactFiles, string, error) {
	files, err := g.RunFiles(ctx, run)
	return files, "of run " + show.ShortID(files.Run), err
}

// artifactGet downloads the files that a run has made.
type artifactGet struct {
	list    func(ctx context.Context, g *client.Gateway, name string) (files api.ArtifactFiles, of string, err error)
	replace bool
}

func (p *artifactGet) flags(f *command.FlagSet) { replaceFlag(f, &p.replace) }

func (p *artifactGet) do(ctx context.Context, c *call) error {
	d := downloading{g: c.g, name: c.positional[0], dir: c.positional[1], replace: p.replace, began: time.Now()}
	files, of, err := p.list(ctx, c.g, c.positional[0])
	if err != nil {
		return err
	}
	return d.get(ctx, c.Session, files.Files, of)
}
