// Command prose checks the language of comments, log messages, command texts and
// documents against the rules for plain English in CONTRIBUTING.md.
//
//	go run ./.ci/prose               # the check of make lint
//	go run ./.ci/prose PATH...       # list every finding below PATH
//	go run ./.ci/prose -since main   # also check the lines that a branch adds
//
// It reads the files that git knows and those that git does not ignore. It fails if
// too large a share of all clauses breaks a rule, if a log message or a command text
// breaks one, or if added lines break more than their own, lower limit.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
}

type options struct {
	tree, added float64 // largest shares of clauses with a finding, in percent
	fragments   float64 // largest share of fragments in the comments at lines' ends, in percent
	strict      bool    // whether log messages and command texts must have no finding
	since       string
	list        bool
}

func run(args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("prose", flag.ContinueOnError)
	flags.Float64Var(&o.tree, "limit", 3, "largest share of findings in all clauses, in percent")
	flags.Float64Var(&o.added, "new", 1, "largest share of findings in added clauses, in percent")
	flags.Float64Var(&o.fragments, "fragments", 30, "largest share of fragments in comments at lines' ends, in percent")
	flags.BoolVar(&o.strict, "strict", true, "fail on any finding in a log message or a command text")
	flags.StringVar(&o.since, "since", "HEAD", "revision to which added lines are compared")
	flags.BoolVar(&o.list, "v", false, "list every finding")
	if err := flags.Parse(args); err != nil {
		return err
	}
	paths := flags.Args()
	o.list = o.list || len(paths) > 0
	clauses, err := clausesBelow(paths)
	if err != nil {
		return err
	}
	added, err := addedSince(o.since)
	if err != nil {
		return err
	}
	return o.report(out, clauses, added)
}

// clausesBelow returns the clauses of all files below the paths.
func clausesBelow(paths []string) (all []clause, err error) {
	listed, err := git(append([]string{"ls-files", "-co", "--exclude-standard", "--"}, paths...)...)
	if err != nil {
		return nil, err
	}
	for _, file := range strings.Fields(listed) {
		if strings.Contains(file, "/testdata/") && path.Ext(file) != ".md" {
			continue
		}
		data, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue // removed, not committed
		}
		if err != nil {
			return nil, err
		}
		all = append(all, clausesIn(file, data)...)
	}
	return all, nil
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if exit, ok := err.(*exec.ExitError); ok {
		return "", fmt.Errorf("git %s: %s", strings.Join(args, " "), exit.Stderr)
	}
	return string(out), err
}

// addedSince returns the lines that the working tree adds to a revision, by file.
func addedSince(revision string) (map[string]map[int]bool, error) {
	diff, err := git("diff", "-U0", "--no-color", "--no-ext-diff", "--src-prefix=a/", "--dst-prefix=b/", "-M", revision)
	if err != nil {
		return nil, err
	}
	added := addedLines(diff)
	fresh, err := git("ls-files", "-o", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	for _, file := range strings.Fields(fresh) {
		added[file] = nil // every line
	}
	return added, nil
}

// addedLines reads a diff without context lines.
func addedLines(diff string) map[string]map[int]bool {
	added, file := map[string]map[int]bool{}, ""
	for line := range strings.Lines(diff) {
		if name, ok := strings.CutPrefix(line, "+++ b/"); ok {
			file = strings.TrimSpace(name)
			added[file] = map[int]bool{}
		}
		if !strings.HasPrefix(line, "@@ ") {
			continue
		}
		var from, n int
		_, rest, _ := strings.Cut(line, "+")
		if c, _ := fmt.Sscanf(rest, "%d,%d", &from, &n); c == 1 {
			n = 1
		}
		for i := range n {
			added[file][from+i] = true
		}
	}
	return added
}

func (o *options) report(out io.Writer, clauses []clause, added map[string]map[int]bool) error {
	var tree, fresh, strict, fragments count
	folders, rules := map[string]*count{}, map[string]int{}
	for _, c := range clauses {
		found := findings(c)
		folder := wing(c.file)
		if folders[folder] == nil {
			folders[folder] = new(count)
		}
		isNew, isStrict := c.isIn(added), o.strict && (c.kind == logMessage || c.kind == commandText || c.kind == summary)
		tree.add(found)
		folders[folder].add(found)
		if isNew {
			fresh.add(found)
		}
		if isStrict {
			strict.add(found)
		}
		if c.kind == fieldComment {
			fragments.count(isFragment(c))
		}
		if o.list && isFragment(c) {
			fmt.Fprintf(out, "%s:%d: a fragment, not a noun phrase: %q\n", c.file, c.line, c.text)
		}
		for _, f := range found {
			rules[f.rule]++
			if o.list || isNew || isStrict {
				fmt.Fprintf(out, "%s:%d: %s: %s: %q in %q\n", c.file, c.line, c.kind, f.rule, f.words, c.text)
			}
		}
	}
	if o.list || tree.share() > o.tree {
		table(out, folders, rules)
	}
	fmt.Fprintf(out, "prose: %s in the tree, %s in added lines; %.1f %% of comments at lines' ends are fragments\n",
		tree, fresh, fragments.share())
	return o.verdict(tree, fresh, strict, fragments)
}

func (o *options) verdict(tree, fresh, strict, fragments count) error {
	switch {
	case tree.share() > o.tree:
		return fmt.Errorf("%s break a rule; the limit is %.1f %%", tree, o.tree)
	case strict.found > 0:
		return fmt.Errorf("%d log messages or command texts break a rule; there must be none", strict.found)
	case fragments.share() > o.fragments:
		return fmt.Errorf("%.1f %% of comments at lines' ends are fragments; the limit is %.1f %%", fragments.share(), o.fragments)
	case fresh.share() > o.added:
		return fmt.Errorf("%s that this change adds break a rule; the limit is %.1f %%", fresh, o.added)
	}
	return nil
}

// count is a number of clauses and how many of them break a rule.
type count struct{ found, all int }

func (c *count) add(found []finding) { c.count(len(found) > 0) }

func (c *count) count(found bool) {
	c.all++
	if found {
		c.found++
	}
}

func (c count) share() float64 { return 100 * float64(c.found) / float64(max(c.all, 1)) }

func (c count) String() string {
	return fmt.Sprintf("%d of %d clauses (%.1f %%)", c.found, c.all, c.share())
}

func wing(file string) string {
	parts := strings.Split(file, "/")
	return strings.Join(parts[:min(len(parts)-1, 2)], "/") + "/"
}

func table(out io.Writer, folders map[string]*count, rules map[string]int) {
	names := slices.SortedFunc(maps.Keys(folders), func(a, b string) int {
		return cmp.Compare(folders[b].found, folders[a].found)
	})
	for _, name := range names {
		if folders[name].found > 0 {
			fmt.Fprintf(out, "  %-32s %s\n", name, folders[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		fmt.Fprintf(out, "  %-32s %d\n", name, rules[name])
	}
}
