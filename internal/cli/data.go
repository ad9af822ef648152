package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/client"
)

// aboutRefs explains to users how to name a version of a dataset.
const aboutRefs = `A dataset is a versioned tree of files, such as bots/bot-42. DATASET@REF is one
version of it: REF is a branch, or the beginning of a commit's id. Without REF it is
the branch main.`

// ofDataset is DATASET or DATASET@REF.
type ofDataset struct{ dataset, ref string }

func parseVersion(text string) (ofDataset, error) {
	dataset, ref, given := strings.Cut(text, "@")
	if dataset == "" || given && ref == "" {
		return ofDataset{}, usagef("%q is not the name of a dataset; write it like bots/bot-42, or bots/bot-42@REF with a branch or a commit", text)
	}
	return ofDataset{dataset, ref}, nil
}

// between checks the number of positional arguments if the last ones are optional.
func between(positional []string, needed int, names ...string) error {
	if len(positional) >= needed && len(positional) < len(names) {
		return nil
	}
	return wants(positional, names[:max(needed, min(len(positional), len(names)))]...)
}

const shownCommit = 12 // length of a commit's id in lists

func shortCommit(id string) string { return harmless(id[:min(len(id), shownCommit)]) }

// holding returns the files and bytes of a commit.
func holding(c *api.Commit) string {
	return fmt.Sprintf("%s, %s", count(c.Files, "file"), size(c.Bytes))
}

// changesOf returns what a commit has changed.
func changesOf(c *api.Commit) string {
	return fmt.Sprintf("%s added, %s changed, %s removed", thousands(int64(c.Added)), thousands(int64(c.Changed)), thousands(int64(c.Removed)))
}

func dataListCommand() command {
	return command{
		name:    "data ls",
		watched: true,
		aliases: []string{"list"},
		args:    "[DATASET[@REF] [PATH]]",
		summary: "list the datasets, or the files of one",
		about:   aboutRefs + "\n\n" + atTheGate,
		examples: []example{
			{"tidemill data ls", "the datasets and their branches"},
			{"tidemill data ls bots/bot-42", "its files on main"},
			{"tidemill data ls bots/bot-42@3f9ac2 train -o json", "files of a folder in one commit, one per line"},
		},
		make: func() program { return &dataList{output: "text"} },
	}
}

type dataList struct {
	gate
	output string
}

func (l *dataList) flags(f *flagSet) {
	f.text(&l.output, "output", "o", "FORMAT", "text or json")
	l.gate.flags(f)
}

func (l *dataList) accept(positional []string) error {
	if err := checkOutput(l.output); err != nil {
		return err
	}
	if len(positional) > 0 {
		if _, err := parseVersion(positional[0]); err != nil {
			return err
		}
	}
	return between(positional, 0, "DATASET", "PATH")
}

func (l *dataList) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := l.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	if len(positional) > 0 {
		return l.files(ctx, s, g, positional)
	}
	all, err := g.Datasets(ctx, "")
	switch {
	case err != nil:
		return err
	case l.output == "json":
		return writeIndented(s.stdout, all.Datasets)
	case len(all.Datasets) == 0:
		fmt.Fprintln(s.stderr, "There are no datasets yet; tidemill data put NAME FOLDER makes one.")
		return nil
	}
	return listDatasets(s.stdout, all.Datasets)
}

func listDatasets(w io.Writer, all []api.Dataset) error {
	rows := [][]string{{"DATASET", "BRANCHES"}}
	for _, d := range all {
		rows = append(rows, []string{harmless(d.Name), harmless(strings.Join(d.Branches, ", "))})
	}
	return columns(w, rows)
}

// onDay formats a time with its date, in the machine's time zone.
func onDay(t time.Time) string { return t.Local().Format("2006-01-02 15:04") }

func dataLogCommand() command {
	return command{
		name:    "data log",
		watched: true,
		args:    "DATASET[@BRANCH]",
		summary: "list the commits of a dataset's branch, newest first",
		about:   atTheGate,
		examples: []example{
			{"tidemill data log bots/bot-42", "the newest commits of main"},
			{"tidemill data log bots/bot-42@next -n 1 -o json", "the newest commit of another branch, for a script"},
		},
		make: func() program { return &dataLog{output: "text", limit: 20} },
	}
}

type dataLog struct {
	gate
	output, after string
	limit         int
}

const mostLogged = 1000

func (p *dataLog) flags(f *flagSet) {
	f.number(&p.limit, "n", "", "N", "list at most this many")
	afterFlag(f, &p.after)
	f.text(&p.output, "output", "o", "FORMAT", "text or json")
	p.gate.flags(f)
}

func (p *dataLog) accept(positional []string) error {
	if err := checkOutput(p.output); err != nil {
		return err
	}
	if p.limit < 1 || p.limit > mostLogged {
		return usagef("-n %d: give 1 to %d", p.limit, mostLogged)
	}
	return wants(positional, "DATASET")
}

func (p *dataLog) run(ctx context.Context, s *session, positional []string) error {
	v, err := parseVersion(positional[0])
	if err != nil {
		return err
	}
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	all, err := g.Commits(ctx, v.dataset, v.ref, p.after, p.limit)
	switch {
	case err != nil:
		return err
	case p.output == "json":
		return writeIndented(s.stdout, all)
	}
	if err := tabulateCommits(s.stdout, all.Commits); err != nil {
		return err
	}
	if all.Next != "" {
		fmt.Fprintf(s.stderr, "There are more than these %d; --after %s shows older ones, -n up to %d of them.\n", len(all.Commits), harmless(all.Next), mostLogged)
	}
	return nil
}

func tabulateCommits(w io.Writer, all []api.Commit) error {
	rows := [][]string{{"COMMIT", "WHEN", "BY", "CHANGED", "CONTENT", "MESSAGE"}}
	for i := range all {
		c := &all[i]
		rows = append(rows, []string{shortCommit(c.ID), onDay(c.Time), authorOf(c), fmt.Sprintf("+%d ~%d -%d", c.Added, c.Changed, c.Removed), holding(c), orDash(harmless(c.Message))})
	}
	return columns(w, rows)
}

// authorOf returns the run or the person that made a commit.
func authorOf(c *api.Commit) string {
	if c.Run != "" {
		return "run " + harmless(c.Run[:min(len(c.Run), shownCommit)])
	}
	return orDash(harmless(c.By))
}

// compare prints the changes that a put would make.
func (w *putting) compare(ctx context.Context, s *session) error {
	left := make(map[string]*api.File, len(w.files))
	for i := range w.files {
		left[w.files[i].Path] = &w.files[i]
	}
	var would []api.Difference
	at := orMain(w.branch)
	_, err := w.g.Files(ctx, w.asked.Dataset, at, "", func(was api.File) error {
		is := left[was.Path]
		delete(left, was.Path)
		switch {
		case is == nil && w.replace:
			would = append(would, api.Difference{Path: was.Path, Was: &was})
		case is != nil && (is.Digest != was.Digest || is.Executable != was.Executable):
			would = append(would, api.Difference{Path: was.Path, Was: &was, Is: is})
		}
		return nil
	})
	if err != nil && client.Status(err) != http.StatusNotFound { // a put makes the branch if it does not exist
		return err
	}
	for i := range w.files {
		if f := &w.files[i]; left[f.Path] != nil {
			would = append(would, api.Difference{Path: f.Path, Is: f})
		}
	}
	w.shown.stop()
	slices.SortFunc(would, func(a, b api.Difference) int { return strings.Compare(a.Path, b.Path) })
	say := lineShower(s.stdout, w.output, differenceText)
	for _, d := range would {
		if err := say(d); err != nil {
			return err
		}
	}
	if w.output != "json" {
		fmt.Fprintf(s.stderr, "%s would change on %s of %s. Next: the same without --dry-run.\n", count(len(would), "file"), harmless(at), harmless(w.asked.Dataset))
	}
	return nil
}

func orMain(branch string) string { return cmp.Or(branch, "main") }

func dataBranchCommand() command {
	return command{
		name:    "data branch",
		args:    "DATASET NEW",
		summary: "make a branch of a dataset",
		about:   "A branch is a name for a commit, so this copies no files. New commits follow from there.\n\n" + atTheGate,
		examples: []example{
			{"tidemill data branch bots/bot-42 next", "from the newest commit of main"},
			{"tidemill data branch bots/bot-42 before --from 3f9ac2", "from an older commit"},
		},
		make: func() program { return &dataBranch{} },
	}
}

type dataBranch struct {
	gate
	from string
}

func (p *dataBranch) flags(f *flagSet) {
	f.text(&p.from, "from", "", "REF", "a branch, or the beginning of a commit's id (default main)")
	p.gate.flags(f)
}

func (p *dataBranch) accept(positional []string) error { return wants(positional, "DATASET", "NEW") }

func (p *dataBranch) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	made, err := g.Branch(ctx, api.BranchAsked{Dataset: positional[0], Branch: positional[1], From: p.from})
	if err != nil {
		return err
	}
	verb := "made"
	if !made.Changed {
		verb = "nothing to do:"
	}
	fmt.Fprintf(s.stdout, "%s branch %s of %s at commit %s (%s)\n", verb, harmless(made.Branch), harmless(positional[0]), shortCommit(made.Commit.ID), holding(&made.Commit))
	return nil
}

func dataCollectCommand() command {
	return command{
		name:    "data gc",
		summary: "remove unused objects from the store",
		about: `It keeps the objects of every commit, the inputs of live runs, and the outputs of
known runs. It also keeps objects younger than --older, because they may be about to
become part of a commit.

` + atTheGate,
		examples: []example{
			{"tidemill data gc --dry-run", "what would be removed"},
			{"tidemill data gc --older 48h", "objects that were unused for two days"},
		},
		make: func() program { return &dataCollect{output: "text", older: 24 * time.Hour} },
	}
}

type dataCollect struct {
	gate
	output string
	older  time.Duration
	dryRun bool
	force  bool
}

func (p *dataCollect) flags(f *flagSet) {
	f.span(&p.older, "older", "DURATION", "keep objects younger than this; at least 24h")
	f.yes(&p.dryRun, "dry-run", "only show what would be removed")
	f.yes(&p.force, "force", "remove files even if most of the newest runs are unknown")
	f.text(&p.output, "output", "o", "FORMAT", "text or json")
	p.gate.flags(f)
}

func (p *dataCollect) accept(positional []string) error {
	if err := checkOutput(p.output); err != nil {
		return err
	}
	if p.older <= 0 {
		return usagef("--older %s: give at least 24h, because younger objects may be about to become part of a commit", p.older)
	}
	return wants(positional)
}

func (p *dataCollect) run(ctx context.Context, s *session, _ []string) error {
	g, done, err := p.enterQuietly(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	found, err := g.Collect(ctx, api.CollectAsked{OlderSeconds: p.older.Seconds(), DryRun: p.dryRun, Force: p.force})
	switch {
	case err != nil:
		return err
	case p.output == "json":
		return writeIndented(s.stdout, found)
	}
	verb := "removed"
	if found.DryRun {
		verb = "would remove"
	}
	fmt.Fprintf(s.stdout, "%s %s of %s, %s of %s; %s stay\n", verb, thousands(int64(found.Removed)), count(found.Objects, "object"),
		size(found.Freed), size(found.Bytes), thousands(int64(found.Kept)))
	return nil
}
