package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
	"tidemill.dev/internal/tail"
)

func modelsCommand() command {
	return command{
		name:    "models",
		summary: "list models: which version serves, how good it is, what waits for a person",
		about: `By name. With --stale those come first whose champion learnt longest ago, and those
without one.

` + atTheGate,
		examples: []example{
			{"tidemill models", "all"},
			{"tidemill models --awaiting", "those with a version that waits for a person"},
			{"tidemill models --recipe intent --stale=7d", "those that have not learnt for a week"},
			{"tidemill models --prefix intent/ -o json", "for a script"},
		},
		make: func() program { return &modelList{output: "text", limit: 50} },
	}
}

// usualStale is how long ago a champion has learnt that is stale, where nobody
// says.
const usualStale = "7d"

// optional is a flag that may stand alone or have a value: --stale, --stale=7d.
type optional struct {
	value *string
	alone string // its value if it stands alone
}

func (o optional) String() string {
	if o.value == nil {
		return ""
	}
	return *o.value
}

// Set takes what stands behind the =, or what the flags give one that stands
// alone.
func (o optional) Set(text string) error {
	if text == "true" {
		text = o.alone
	}
	*o.value = text
	return nil
}

// IsBoolFlag lets it stand alone.
func (optional) IsBoolFlag() bool { return true }

func (f *flagSet) optional(p *string, long, value, alone, usage string) {
	f.set.Var(optional{p, alone}, long, usage)
	f.note(long, "", value)
}

type modelList struct {
	gate
	q      remote.ModelQuery
	output string
	limit  int
}

func (l *modelList) flags(f *flagSet) {
	f.text(&l.q.Recipe, "recipe", "r", "NAME", "of this recipe")
	f.text(&l.q.Key, "key", "", "KEY", "of this key")
	f.text(&l.q.Prefix, "prefix", "", "NAME", "whose names begin so")
	f.optional(&l.q.Stale, "stale", "[=AGE]", usualStale, "without a champion, or with one that learnt longer ago than this; alone it is "+usualStale)
	f.yes(&l.q.Awaiting, "awaiting", "with a version that waits for a person")
	f.yes(&l.q.Pinned, "pinned", "whose champion is pinned")
	f.number(&l.limit, "limit", "n", "COUNT", "show no more than so many")
	f.text(&l.output, "output", "o", "FORMAT", "text or json")
	l.gate.flags(f)
}

func (l *modelList) accept(positional []string) error {
	if err := checkOutput(l.output); err != nil {
		return err
	}
	if len(positional) == 1 && l.q.Stale != "" {
		return usagef("%q is one argument too many; write --stale=%s", positional[0], positional[0])
	}
	if len(positional) == 1 {
		return usagef("%q is one argument too many; tidemill models show %s shows one model", positional[0], positional[0])
	}
	if l.limit < 1 {
		return usagef("--limit %d: give 1 or more", l.limit)
	}
	if l.q.Stale != "" {
		if _, err := tail.ParseTime("-"+l.q.Stale, time.Now()); err != nil {
			return usagef("--stale=%s is no age; write it like 12h or 7d", l.q.Stale)
		}
	}
	return wants(positional)
}

func (l *modelList) run(ctx context.Context, s *session, _ []string) error {
	g, done, err := l.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	all, more, err := gatherModels(ctx, g, l.q, l.limit)
	switch {
	case err != nil:
		return err
	case l.output == "json":
		return writeIndented(s.stdout, all)
	case len(all) == 0 && l.says():
		fmt.Fprintln(s.stderr, "No model is meant; without flags all are listed.")
		return nil
	case len(all) == 0:
		fmt.Fprintln(s.stderr, "There are no models yet; a run of a recipe that makes one registers its first version.")
		return nil
	}
	if err := tabulateModels(s.stdout, all, time.Now()); err != nil {
		return err
	}
	adviseOnModels(s.stderr, all, more)
	return nil
}

// says reports whether a flag limits what is meant.
func (l *modelList) says() bool {
	return l.q.Recipe+l.q.Key+l.q.Prefix+l.q.Stale != "" || l.q.Awaiting || l.q.Pinned
}

const modelPage = 1000

// gatherModels turns pages until there are as many as are wanted.
func gatherModels(ctx context.Context, g *remote.Gateway, q remote.ModelQuery, limit int) (all []api.ModelShown, more bool, err error) {
	all = []api.ModelShown{}
	for {
		q.Limit = min(limit-len(all), modelPage)
		page, err := g.Models(ctx, q)
		if err != nil {
			return nil, false, err
		}
		all = append(all, page.Models...)
		if q.After = page.Next; q.After == "" || len(all) >= limit {
			return all, q.After != "", nil
		}
	}
}

func tabulateModels(w io.Writer, all []api.ModelShown, now time.Time) error {
	rows := [][]string{{"MODEL", "CHAMPION", "LEARNT", "NEWEST", "ACCURACY", "MACRO-F1", ""}}
	for i := range all {
		m := &all[i]
		champion, learnt := "none", "-"
		if m.Champion != 0 {
			champion = strconv.Itoa(m.Champion)
		}
		if m.Began != nil {
			learnt = age(now.Sub(*m.Began))
		}
		rows = append(rows, []string{cut(harmless(m.Name), 60), champion, learnt, newestText(m), metricText(m.Metrics, "accuracy"), metricText(m.Metrics, "macroF1"), noteOfModel(m)})
	}
	return columns(w, rows)
}

func newestText(m *api.ModelShown) string {
	switch {
	case m.Versions == 0:
		return "-"
	case m.Newest == m.Champion:
		return strconv.Itoa(m.Newest)
	}
	return strconv.Itoa(m.Newest) + " " + harmless(string(m.State))
}

func metricText(metrics map[string]float64, name string) string {
	v, has := metrics[name]
	if !has {
		return "-"
	}
	return figure(v)
}

// figure is a share or a score, as exactly as it is worth reading.
func figure(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }

// noteOfModel is the most telling of what is known of a model.
func noteOfModel(m *api.ModelShown) string {
	var notes []string
	if m.Pinned {
		notes = append(notes, "pinned by "+harmless(orSomebody(m.PinnedBy)))
	}
	if m.Retired != nil {
		notes = append(notes, "its key has gone")
	}
	if m.Why != "" {
		return cut(harmless(m.Why), 100)
	}
	return strings.Join(notes, ", ")
}

// age is a time gone by, in its largest unit.
func age(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func adviseOnModels(w io.Writer, all []api.ModelShown, more bool) {
	fmt.Fprintln(w)
	if more {
		fmt.Fprintf(w, "These are the first %s; --limit shows more, and --recipe, --key, --prefix, --stale, --awaiting or --pinned others.\n", thousands(int64(len(all))))
	}
	name := harmless(all[0].Name)
	for i := range all {
		if m := &all[i]; m.State == tidemill.VersionAwaiting {
			fmt.Fprintf(w, "Next: tidemill models show %s tells what awaits you, tidemill promote %[1]s promotes it.\n", harmless(tidemill.VersionName(m.Name, m.Newest)))
			return
		}
	}
	fmt.Fprintf(w, "Next: tidemill models show %s tells all of one.\n", name)
}
