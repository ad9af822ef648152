package remote

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/gateway/client"
)

func modelsCommand() command.Command {
	return command.Command{
		Name:    "models",
		Daily:   true,
		Lists:   true,
		Watched: true,
		Summary: "list models: the champion, its accuracy, versions that wait for a person",
		About: `It sorts by name. With --stale it sorts by age: models without a champion, or with the
oldest champion, come first.`,
		Examples: []command.Example{
			{"tidemill models", "all"},
			{"tidemill models --awaiting", "models with a version that waits for a person"},
			{"tidemill models --recipe intent --stale=7d", "models that have not been trained for a week"},
			{"tidemill models --prefix intent/ -o json", "for a script"},
		},
		Make: func() command.Program {
			l := &modelList{}
			return listing(l.ask, l.table).with(l.Flags, l.accept)
		},
	}
}

// usualStale is the age from which a champion is stale, if --stale has no value.
const usualStale = "7d"

type modelList struct {
	q client.ModelQuery
	pages
}

// modelFlags select models.
func modelFlags(f *command.FlagSet, recipe, key, prefix *string) {
	f.Text(recipe, "recipe", "r", "NAME", "only models of this recipe")
	f.Text(key, "key", "", "KEY", "only models of this key")
	f.Text(prefix, "prefix", "", "NAME", "only models whose names begin with this")
}

func (l *modelList) Flags(f *command.FlagSet) {
	modelFlags(f, &l.q.Recipe, &l.q.Key, &l.q.Prefix)
	f.Optional(&l.q.Stale, "stale", "[=AGE]", usualStale, "only models without a champion, or with an older one than this; without AGE it is "+usualStale)
	f.Yes(&l.q.Awaiting, "awaiting", "only models with a version that waits for a person")
	f.Yes(&l.q.Pinned, "pinned", "only models with a pinned champion")
	f.Yes(&l.q.Drifting, "drifting", "only models of which a figure has drifted")
	l.pages.add(f)
}

func (l *modelList) accept([]string) error {
	if err := l.check(); err != nil || l.q.Stale == "" {
		return err
	}
	return checkAge("--stale=", l.q.Stale)
}

// checkAge refuses a value of a flag that is not an age.
func checkAge(flag, text string) error {
	if _, err := follow.ParseTime("-"+text, time.Now()); err != nil {
		return command.Usagef("%s%s is not an age; write it like 12h or 7d", flag, text)
	}
	return nil
}

func (l *modelList) ask(ctx context.Context, g *client.Gateway) (api.Models, error) {
	return gatherModels(ctx, g, l.q, &l.pages)
}

func (l *modelList) table(page *api.Models) table {
	return table{rows: modelRows(page.Models, time.Now()), advice: func(w io.Writer) { adviseOnModels(w, page) },
		none: nothing(l.says(), "model", "There are no models yet; a run of a recipe that makes one registers its first version.")}
}

// says reports whether a flag limits the selection.
func (l *modelList) says() bool {
	return l.q.Recipe+l.q.Key+l.q.Prefix+l.q.Stale+l.after != "" || l.q.Awaiting || l.q.Pinned || l.q.Drifting
}

func gatherModels(ctx context.Context, g *client.Gateway, q client.ModelQuery, p *pages) (all api.Models, err error) {
	all.Models, all.Next, err = gather(p.limit, p.after, func(limit int, after string) ([]api.ModelShown, string, error) {
		q.Limit, q.After = limit, after
		page, err := g.Models(ctx, q)
		all.Total = page.Total
		return page.Models, page.Next, err
	})
	return all, err
}

func modelRows(all []api.ModelShown, now time.Time) [][]string {
	return rowsOf(all, func(m *api.ModelShown) []string {
		champion, learnt := "none", "-"
		if m.Champion != 0 {
			champion = strconv.Itoa(m.Champion) + servingText(m.Unserved)
		}
		if m.Began != nil {
			learnt = age(now.Sub(*m.Began))
		}
		return []string{show.Cut(show.Harmless(m.Name), 60), champion, learnt, newestText(m), metricText(m.Metrics, "accuracy"), metricText(m.Metrics, "macroF1"), noteOfModel(m)}
	}, "MODEL", "CHAMPION", "TRAINED", "NEWEST", "ACCURACY", "MACRO-F1", "")
}

// servingText says which version answers, if it is not the champion.
func servingText(u *fold.Unserved) string {
	switch {
	case u == nil:
		return ""
	case u.Kept == 0:
		return " (not served)"
	}
	return fmt.Sprintf(" (serving %d)", u.Kept)
}

func newestText(m *api.ModelShown) string {
	switch {
	case m.Versions == 0:
		return "-"
	case m.Newest == m.Champion:
		return strconv.Itoa(m.Newest)
	}
	return strconv.Itoa(m.Newest) + " " + show.Harmless(string(m.State))
}

func metricText(metrics map[string]float64, name string) string {
	v, has := metrics[name]
	if !has {
		return "-"
	}
	return figure(v)
}

// figure formats a share or a score with a useful number of digits.
func figure(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }

// noteWidth is the width of a note. A shorter one would cut off what to install.
const noteWidth = 140

// noteOfModel returns the notes on a model, the most important first.
func noteOfModel(m *api.ModelShown) string {
	if m.Why != "" {
		return show.Cut(show.Harmless(m.Why), noteWidth)
	}
	var notes []string
	if u := m.Unserved; u != nil {
		notes = append(notes, "scorer "+u.Scorer+" cannot load it: "+u.Error)
	}
	if n := len(m.Drifts); n > 0 {
		notes = append(notes, "drifting: "+driftText(&m.Drifts[n-1]))
	}
	if m.Pinned {
		notes = append(notes, "pinned by "+orSomebody(m.PinnedBy))
	}
	if m.Retired != nil {
		notes = append(notes, "its key is deleted")
	}
	if m.Hold != "" {
		notes = append(notes, fmt.Sprintf("%d waits: %s", m.Newest, m.Hold))
	}
	return show.Cut(show.Harmless(strings.Join(notes, ", ")), noteWidth)
}

// isBlocked reports whether the promotion of the newest version would be refused.
func isBlocked(m *api.ModelShown) bool { return m.Lacks || m.Pinned }

// age formats a time span in its largest unit.
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

func adviseOnModels(w io.Writer, page *api.Models) {
	all := page.Models
	sayCut(w, len(all), &page.Total, "model", page.Next)
	what := show.Harmless(all[0].Name) + " shows one in detail"
	for i := range slices.Backward(all) { // the first one counts
		m := &all[i]
		version := show.Harmless(tidemill.VersionName(m.Name, m.Newest))
		switch {
		case m.Unserved != nil:
			fmt.Fprintf(w, "Next: tidemill models show %s shows why its champion is not served.\n", show.Harmless(m.Name))
			return
		case m.State != tidemill.VersionAwaiting:
		case isBlocked(m):
			what = version + " shows the version that waits, and why it cannot be promoted yet"
		default:
			what = version + " shows the version that waits, tidemill promote " + version + " promotes it"
		}
	}
	fmt.Fprintf(w, "Next: tidemill models show %s.\n", what)
}

// versionArg parses the name of a version: intent/bot-42@7, @champion, @previous, @newest, or the
// model alone. An @ may follow only the name of a model that ends like that of a version.
func versionArg(name string) (model, which string, err error) {
	if model, which, err = tidemill.CutVersionName(name); err != nil {
		return "", "", command.Usagef("%v; tidemill models lists models, and tidemill models show MODEL its versions", err)
	}
	return model, which, nil
}

// findVersion returns the number of a version of a model.
func findVersion(whole *api.ModelWhole, which string) (int, error) {
	n := whole.Which(which)
	switch {
	case n != 0:
		return n, nil
	case len(whole.Versions) == 0:
		return 0, fmt.Errorf("model %s has no version: its next run registers one", show.Harmless(whole.Name))
	case which == tidemill.WhichChampion:
		return 0, fmt.Errorf("model %s has no champion; tidemill models show %[1]s@newest shows why the newest version is not, tidemill promote %[1]s@newest%s promotes it", show.Harmless(whole.Name), forceOf(whole.Find(whole.Which(tidemill.WhichNewest))))
	case which == tidemill.WhichPrevious:
		return 0, fmt.Errorf("model %s has no previous champion; tidemill models show %[1]s lists its versions", show.Harmless(whole.Name))
	}
	return 0, fmt.Errorf("model %s has no version %s, or no longer keeps it; it has %s", show.Harmless(whole.Name), show.Harmless(which), versionNumbers(whole))
}

// forceOf returns the flag that a promotion of a version needs. A version that waits for approval
// needs none.
func forceOf(h *fold.Held) string {
	if h != nil && (h.State == tidemill.VersionRefused || h.State == tidemill.VersionRegistered || h.State == tidemill.VersionTrial) {
		return " --force"
	}
	return ""
}

func versionNumbers(whole *api.ModelWhole) string {
	var all []string
	for _, h := range whole.Versions {
		all = append(all, strconv.Itoa(h.Number))
	}
	if len(all) > 12 {
		all = append(append(all[:3:3], "…"), all[len(all)-8:]...)
	}
	return strings.Join(all, ", ")
}

// lookedAt is a version with its report.
type lookedAt struct {
	model   *api.ModelWhole
	version *api.ModelVersion
}

// lookAtVersion finds a version and its report.
func lookAtVersion(ctx context.Context, g *client.Gateway, name string) (lookedAt, error) {
	model, which, err := versionArg(name)
	if err != nil {
		return lookedAt{}, err
	}
	whole, err := g.Model(ctx, model, "")
	if err != nil {
		return lookedAt{}, err
	}
	n, err := findVersion(&whole, which)
	if err != nil {
		return lookedAt{}, err
	}
	return measuredVersion(ctx, g, &whole, n)
}

func measuredVersion(ctx context.Context, g *client.Gateway, whole *api.ModelWhole, n int) (lookedAt, error) {
	one, err := g.Model(ctx, whole.Name, strconv.Itoa(n))
	if err != nil {
		return lookedAt{}, err
	}
	if len(one.All) != 1 {
		return lookedAt{}, fmt.Errorf("model %s: version %d was removed meanwhile; try again", show.Harmless(whole.Name), n)
	}
	return lookedAt{whole, &one.All[0]}, nil
}

func sayModel(w io.Writer, m *api.ModelWhole) error {
	say, flush := labelledLines(w)
	say("model", m.Name)
	say("recipe", strings.TrimPrefix(m.Recipe+" for "+orDash(m.Key), " "))
	say("champion", championText(m))
	if p := m.Pin; p != nil {
		say("pinned", strings.TrimSuffix(clock(p.At)+" by "+orSomebody(p.By)+": "+p.Reason, ": "))
	}
	if u := m.Unserved; u != nil {
		answers := "no version answers"
		if u.Kept != 0 {
			answers = fmt.Sprintf("version %d answers", u.Kept)
		}
		say("serving", fmt.Sprintf("%s: scorer %s could not load version %d, at %s: %s", answers, u.Scorer, m.Champion, clock(u.At), u.Error))
	}
	for i := range m.Drifts {
		say("drifting", driftText(&m.Drifts[i])+", reported at "+clock(m.Drifts[i].At))
	}
	if !m.Retired.IsZero() {
		say("retired", clock(m.Retired)+": its key is deleted")
	}
	return flush()
}

func championText(m *api.ModelWhole) string {
	if m.Champion == 0 {
		return "none"
	}
	text := "version " + strconv.Itoa(m.Champion)
	for _, c := range slices.Backward(m.Changes) {
		if c.Version == m.Champion {
			text += " since " + clock(c.At)
			break
		}
	}
	if m.Previous != 0 {
		text += ", previously version " + strconv.Itoa(m.Previous)
	}
	return text
}

// tabulateVersions lists the versions that are kept, newest first.
func tabulateVersions(w io.Writer, m *api.ModelWhole, now time.Time) error {
	if len(m.All) == 0 {
		_, err := fmt.Fprintln(w, "\nNo version is stored.")
		return err
	}
	fmt.Fprintln(w)
	return show.Columns(w, rowsOf(m.All, func(v *api.ModelVersion) []string {
		return []string{strconv.Itoa(v.Number), stateOfVersion(m, v), metricText(v.Metrics, "accuracy"), metricText(v.Metrics, "macroF1"),
			show.ShortID(v.Run), age(now.Sub(v.Began)), show.Cut(show.Harmless(reasonOf(v)), 100)}
	}, "VERSION", "STATE", "ACCURACY", "MACRO-F1", "RUN", "TRAINED", ""))
}

// stateOfVersion returns the state of a version, and whether it is or was the champion.
func stateOfVersion(m *api.ModelWhole, v *api.ModelVersion) string {
	switch {
	case v.Number == m.Champion && m.Pin != nil:
		return "champion, pinned"
	case v.Number == m.Champion:
		return "champion"
	case v.Number == m.Previous:
		return "previous champion"
	case v.State == tidemill.VersionPromoted:
		return "was champion"
	}
	return show.Harmless(string(v.State))
}

func sentenceOf(v *api.ModelVersion) string {
	if v.Judgement == nil {
		return "not judged yet"
	}
	if v.OnTrial != nil {
		return onTrialText(v.OnTrial)
	}
	return v.Judgement.Sentence
}

// shortSentence returns the gate's sentence without the version's name, with which it usually
// begins.
func shortSentence(v *api.ModelVersion) string {
	return strings.TrimPrefix(sentenceOf(v), fmt.Sprintf("version %d of %s ", v.Number, v.Model))
}

// reasonOf returns the gate's sentence for a place that shows the version's state next to it.
func reasonOf(v *api.ModelVersion) string {
	return strings.TrimPrefix(shortSentence(v), "is refused: ")
}

const shownChanges = 5

// showChanges prints the newest changes of the champion, newest first.
func showChanges(w io.Writer, m *api.ModelWhole) {
	if len(m.Changes) == 0 {
		return
	}
	fmt.Fprintln(w, "\nThe champion has changed:")
	for i, c := range slices.Backward(m.Changes) {
		if i < len(m.Changes)-shownChanges {
			fmt.Fprintf(w, "  … and %s before\n", show.Count(i+1, "time"))
			break
		}
		fmt.Fprintf(w, "  %s  %s\n", clock(c.At), show.Harmless(changeText(m, &c)))
	}
}

func changeText(m *api.ModelWhole, c *fold.Change) string {
	from := "none"
	if c.Before != 0 {
		from = "version " + strconv.Itoa(c.Before)
	}
	how := m.How(c)
	if c.Action.OfPeople() {
		how += " by " + orSomebody(c.By)
	}
	return strings.TrimSuffix(fmt.Sprintf("%s → version %d, %s: %s", from, c.Version, how, c.Reason), ": ")
}

// showVerdict prints the gate's verdict on a version: the sentence, and each clause with its
// values.
func showVerdict(w io.Writer, m *api.ModelWhole, v *api.ModelVersion) {
	fmt.Fprintf(w, "\nVersion %d, %s: %s\n", v.Number, stateOfVersion(m, v), show.Harmless(reasonOf(v)))
	showClauses(w, v.Judgement)
}

// showClauses prints each clause of a gate with its values.
func showClauses(w io.Writer, j *tidemill.Judgement) {
	if j == nil {
		return
	}
	for i := range j.Clauses {
		c := &j.Clauses[i]
		mark := "holds"
		if !c.Passed {
			mark = "FAILS"
		}
		fmt.Fprintf(w, "  %s  %s\n", mark, show.Harmless(c.Text))
		if text := clauseText(c); text != "" {
			fmt.Fprintf(w, "         %s\n", show.Harmless(text))
		}
	}
	if j.On == tidemill.GateOnRecorded {
		fmt.Fprintln(w, "  The champion's figures are from its registration, perhaps on other data.")
	}
}

// clauseText returns the values of a clause, and its note.
func clauseText(c *tidemill.Clause) string {
	var parts []string
	for _, name := range telling(c.Values) {
		parts = append(parts, name+" = "+number(c.Values[name]))
	}
	if c.Note != "" {
		parts = append(parts, c.Note)
	}
	return strings.Join(parts, ", ")
}

// showOrigin prints the run, data and code that made a version.
func showOrigin(w io.Writer, v *api.ModelVersion, now time.Time) error {
	fmt.Fprintln(w)
	say, flush := labelledLines(w)
	say("made by", "run "+v.Run+", started "+age(now.Sub(v.Began))+" ago, took "+roughSpan(v.Ended.Sub(v.Began))+", for "+show.Count(v.Causes, "event"))
	for i := range v.Inputs {
		say("trained on", inputText(&v.Inputs[i]))
	}
	say("on", placeOfTry(&tidemill.Attempt{Where: v.Where}))
	say("code", v.Image)
	say("made", fmt.Sprintf("%s, %s, tree %s", show.Count(v.Files, "file"), show.Size(v.Bytes), v.Artifact))
	return flush()
}
