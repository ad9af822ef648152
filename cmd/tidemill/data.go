package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"tidemill.dev/internal/api"
)

// aboutRefs explains to people how a version of a dataset is named.
const aboutRefs = `A dataset is a versioned tree of files, such as bots/bot-42. DATASET@REF is one
version of it: REF is a branch, or a commit's id or the beginning of it. Without
one it is the branch main.`

// ofDataset is DATASET or DATASET@REF.
type ofDataset struct{ dataset, ref string }

func parseVersion(text string) (ofDataset, error) {
	dataset, ref, given := strings.Cut(text, "@")
	if dataset == "" || given && ref == "" {
		return ofDataset{}, usagef("%q names no dataset; write it like bots/bot-42, or bots/bot-42@REF with a branch or a commit", text)
	}
	return ofDataset{dataset, ref}, nil
}

// between checks a number of positional arguments of which some may be missing.
func between(positional []string, needed int, names ...string) error {
	if len(positional) >= needed && len(positional) < len(names) {
		return nil
	}
	return wants(positional, names[:max(needed, min(len(positional), len(names)))]...)
}

const shownCommit = 12 // letters of a commit's id

func shortCommit(id string) string { return harmless(id[:min(len(id), shownCommit)]) }

// holding is how much a commit holds.
func holding(c *api.Commit) string {
	return fmt.Sprintf("%s, %s", count(c.Files, "file"), size(c.Bytes))
}

// changesOf is what a commit changed.
func changesOf(c *api.Commit) string {
	return fmt.Sprintf("%s added, %s changed, %s removed", thousands(int64(c.Added)), thousands(int64(c.Changed)), thousands(int64(c.Removed)))
}

func dataListCommand() command {
	return command{
		name:    "data ls",
		args:    "[DATASET[@REF] [PATH]]",
		summary: "list the datasets, or the files of one",
		about:   aboutRefs + "\n\n" + atTheGate,
		examples: []example{
			{"tidemill data ls", "the datasets and their branches"},
			{"tidemill data ls bots/bot-42", "its files as they are on main"},
			{"tidemill data ls bots/bot-42@3f9ac2 train -o json", "those of a folder in one commit, one a line"},
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

// onDay is a time of long ago or of today, as the machine's clock shows it.
func onDay(t time.Time) string { return t.Local().Format("2006-01-02 15:04") }
