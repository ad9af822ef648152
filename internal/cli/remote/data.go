package remote

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

// aboutRefs explains to users how to name a version of a dataset.
const aboutRefs = `A dataset is a versioned tree of files, such as bots/bot-42. DATASET@REF is one
version of it: REF is a branch, or the beginning of a commit's id. Without REF it is
the branch main.`

// ofDataset is DATASET or DATASET@REF.
type ofDataset struct{ dataset, ref string }

func parseVersion(text string) (ofDataset, error) {
	dataset, ref, given := tidemill.CutDatasetRef(text)
	if dataset == "" || given && ref == "" {
		return ofDataset{}, command.Usagef("%q is not the name of a dataset; write it like bots/bot-42, or bots/bot-42@REF with a branch or a commit", text)
	}
	return ofDataset{dataset, ref}, nil
}

const shownCommit = 12 // length of a commit's id in lists

func shortCommit(id string) string { return show.Harmless(id[:min(len(id), shownCommit)]) }

// holding returns the files and bytes of a commit.
func holding(c *api.Commit) string {
	return fmt.Sprintf("%s, %s", show.Count(c.Files, "file"), show.Size(c.Bytes))
}

// changesOf returns what a commit has changed.
func changesOf(c *api.Commit) string {
	return fmt.Sprintf("%s added, %s changed, %s removed", show.Thousands(int64(c.Added)), show.Thousands(int64(c.Changed)), show.Thousands(int64(c.Removed)))
}

func dataListCommand() command.Command {
	return command.Command{
		Name:    "data ls",
		Watched: true,
		Aliases: []string{"list"},
		Args:    "[DATASET[@REF] [PATH]]",
		Summary: "list the datasets, or the files of one",
		About:   aboutRefs + "",
		Examples: []command.Example{
			{"tidemill data ls", "the datasets and their branches"},
			{"tidemill data ls bots/bot-42", "its files on main"},
			{"tidemill data ls bots/bot-42@3f9ac2 train -o json", "files of a folder in one commit, one per line"},
		},
		Make: func() command.Program { return &request{json: true, accept: acceptDataset, do: listData} },
	}
}

func acceptDataset(positional []string) error {
	if len(positional) == 0 {
		return nil
	}
	_, err := parseVersion(positional[0])
	return err
}

func listData(ctx context.Context, c *call) error {
	if len(c.positional) > 0 {
		return listFiles(ctx, c)
	}
	return listing(func(ctx context.Context, g *client.Gateway) ([]api.Dataset, error) {
		all, err := g.Datasets(ctx, "")
		return all.Datasets, err
	}, func(all *[]api.Dataset) table {
		return table{none: "There are no datasets yet; tidemill data put NAME FOLDER makes one.", rows: rowsOf(*all, func(d *api.Dataset) []string {
			return []string{show.Harmless(d.Name), show.Harmless(strings.Join(d.Branches, ", "))}
		}, "DATASET", "BRANCHES")}
	}).do(ctx, c)
}

// onDay formats a time with its date, in the machine's time zone.
func onDay(t time.Time) string { return t.Local().Format("2006-01-02 15:04") }

func dataLogCommand() command.Command {
	return command.Command{
		Name:    "data log",
		Watched: true,
		Args:    "DATASET[@BRANCH]",
		Summary: "list the commits of a dataset's branch, newest first",
		Examples: []command.Example{
			{"tidemill data log bots/bot-42", "the newest commits of main"},
			{"tidemill data log bots/bot-42@next -n 1 -o json", "the newest commit of another branch, for a script"},
		},
		Make: func() command.Program {
			p := &dataLog{limit: 20}
			return asking(p.ask, p.print).with(p.flags, p.accept)
		},
	}
}

type dataLog struct {
	after string
	limit int
}

const mostLogged = 1000

func (p *dataLog) flags(f *command.FlagSet) {
	f.Number(&p.limit, "n", "", "N", "list at most this many")
	afterFlag(f, &p.after)
}

func (p *dataLog) accept(positional []string) error {
	if p.limit < 1 || p.limit > mostLogged {
		return command.Usagef("-n %d: give 1 to %d", p.limit, mostLogged)
	}
	return acceptDataset(positional)
}

func (p *dataLog) ask(ctx context.Context, g *client.Gateway, positional []string) (api.Log, error) {
	v, err := parseVersion(positional[0])
	if err != nil {
		return api.Log{}, err
	}
	return g.Commits(ctx, v.dataset, v.ref, p.after, p.limit)
}

func (p *dataLog) print(s *command.Session, all *api.Log) error {
	err := show.Columns(s.Stdout, rowsOf(all.Commits, func(c *api.Commit) []string {
		return []string{shortCommit(c.ID), onDay(c.Time), authorOf(c), fmt.Sprintf("+%d ~%d -%d", c.Added, c.Changed, c.Removed), holding(c), orDash(show.Harmless(c.Message))}
	}, "COMMIT", "WHEN", "BY", "CHANGED", "CONTENT", "MESSAGE"))
	if err == nil && all.Next != "" {
		fmt.Fprintf(s.Stderr, "There are more than these %d; --after %s shows older ones, -n up to %d of them.\n", len(all.Commits), show.Harmless(all.Next), mostLogged)
	}
	return err
}

// authorOf returns the run or the person that made a commit.
func authorOf(c *api.Commit) string {
	if c.Run != "" {
		return "run " + show.Harmless(c.Run[:min(len(c.Run), shownCommit)])
	}
	return orDash(show.Harmless(c.By))
}

// compare prints the changes that a put would make.
func (w *putting) compare(ctx context.Context, c *call) error {
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
	w.shown.Stop()
	slices.SortFunc(would, func(a, b api.Difference) int { return strings.Compare(a.Path, b.Path) })
	say := lineShower(c.Stdout, c.json, differenceText)
	for _, d := range would {
		if err := say(d); err != nil {
			return err
		}
	}
	if !c.json {
		fmt.Fprintf(c.Stderr, "%s would change on %s of %s. Next: the same without --dry-run.\n", show.Count(len(would), "file"), show.Harmless(at), show.Harmless(w.asked.Dataset))
	}
	return nil
}

func orMain(branch string) string { return cmp.Or(branch, "main") }

func dataBranchCommand() command.Command {
	return command.Command{
		Name:    "data branch",
		Args:    "DATASET NEW",
		Summary: "make a branch of a dataset",
		About:   "A branch is a name for a commit, so this copies no files. New commits follow from there.",
		Examples: []command.Example{
			{"tidemill data branch bots/bot-42 next", "from the newest commit of main"},
			{"tidemill data branch bots/bot-42 before --from 3f9ac2", "from an older commit"},
		},
		Make: func() command.Program {
			p := &dataBranch{}
			return &request{flags: p.flags, do: p.do}
		},
	}
}

type dataBranch struct{ from string }

func (p *dataBranch) flags(f *command.FlagSet) {
	f.Text(&p.from, "from", "", "REF", "a branch, or the beginning of a commit's id (default main)")
}

func (p *dataBranch) do(ctx context.Context, c *call) error {
	made, err := c.g.Branch(ctx, api.BranchAsked{Dataset: c.positional[0], Branch: c.positional[1], From: p.from})
	if err != nil {
		return err
	}
	verb := "made"
	if !made.Changed {
		verb = "nothing to do:"
	}
	fmt.Fprintf(c.Stdout, "%s branch %s of %s at commit %s (%s)\n", verb, show.Harmless(made.Branch), show.Harmless(c.positional[0]), shortCommit(made.Commit.ID), holding(&made.Commit))
	return nil
}

func dataCollectCommand() command.Command {
	return command.Command{
		Name:    "data gc",
		Summary: "remove unused objects from the store",
		About: `It keeps the objects of every commit, the inputs of live runs, and the outputs of
known runs. It also keeps objects younger than --older, because they may be about to
become part of a commit.`,
		Examples: []command.Example{
			{"tidemill data gc --dry-run", "what would be removed"},
			{"tidemill data gc --older 48h", "objects that were unused for two days"},
		},
		Make: func() command.Program {
			p := &dataCollect{older: 24 * time.Hour}
			r := asking(p.ask, p.print).with(p.flags, p.accept)
			r.quiet = true
			return r
		},
	}
}

type dataCollect struct {
	older  time.Duration
	dryRun bool
	force  bool
}

func (p *dataCollect) flags(f *command.FlagSet) {
	f.Span(&p.older, "older", "DURATION", "keep objects younger than this; at least 24h")
	f.Yes(&p.dryRun, "dry-run", "only show what would be removed")
	f.Yes(&p.force, "force", "remove files even if most of the newest runs are unknown")
}

func (p *dataCollect) accept([]string) error {
	if p.older <= 0 {
		return command.Usagef("--older %s: give at least 24h, because younger objects may be about to become part of a commit", p.older)
	}
	return nil
}

func (p *dataCollect) ask(ctx context.Context, g *client.Gateway, _ []string) (api.Collected, error) {
	return g.Collect(ctx, api.CollectAsked{OlderSeconds: p.older.Seconds(), DryRun: p.dryRun, Force: p.force})
}

func (p *dataCollect) print(s *command.Session, found *api.Collected) error {
	verb := "removed"
	if found.DryRun {
		verb = "would remove"
	}
	_, err := fmt.Fprintf(s.Stdout, "%s %s of %s, %s of %s; %s stay\n", verb, show.Thousands(int64(found.Removed)), show.Count(found.Objects, "object"),
		show.Size(found.Freed), show.Size(found.Bytes), show.Thousands(int64(found.Kept)))
	return err
}
