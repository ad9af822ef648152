package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/api"
)

// sayer prints lines of two columns: what, and what there is to say of it.
func sayer(w io.Writer) (say func(what, text string), flush func() error) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	return func(what, text string) {
		if text != "" {
			fmt.Fprintf(t, "%s\t%s\n", what, harmless(text))
		}
	}, t.Flush
}

func sayModel(w io.Writer, m *api.ModelWhole) error {
	say, flush := sayer(w)
	say("model", m.Name)
	say("recipe", strings.TrimPrefix(m.Recipe+" for "+orDash(m.Key), " "))
	say("champion", championText(m))
	if p := m.Pin; p != nil {
		say("pinned", strings.TrimSuffix(clock(p.At)+" by "+orSomebody(p.By)+": "+p.Reason, ": "))
	}
	if !m.Retired.IsZero() {
		say("retired", clock(m.Retired)+": its key has gone")
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
		text += ", before it version " + strconv.Itoa(m.Previous)
	}
	return text
}

// tabulateVersions lists those that are kept, the newest first.
func tabulateVersions(w io.Writer, m *api.ModelWhole, now time.Time) error {
	if len(m.All) == 0 {
		_, err := fmt.Fprintln(w, "\nNo version is kept.")
		return err
	}
	rows := [][]string{{"VERSION", "STATE", "ACCURACY", "MACRO-F1", "RUN", "LEARNT", ""}}
	for i := range m.All {
		v := &m.All[i]
		rows = append(rows, []string{strconv.Itoa(v.Number), stateOfVersion(m, v), metricText(v.Metrics, "accuracy"), metricText(v.Metrics, "macroF1"),
			shortID(v.Run), age(now.Sub(v.Began)), cut(harmless(shortSentence(v)), 100)})
	}
	fmt.Fprintln(w)
	return columns(w, rows)
}

// stateOfVersion tells the champion from those that were one.
func stateOfVersion(m *api.ModelWhole, v *api.ModelVersion) string {
	switch {
	case v.Number == m.Champion && m.Pin != nil:
		return "champion, pinned"
	case v.Number == m.Champion:
		return "champion"
	case v.Number == m.Previous:
		return "champion before"
	case v.State == tidemill.VersionPromoted:
		return "was champion"
	}
	return harmless(string(v.State))
}

func sentenceOf(v *api.ModelVersion) string {
	if v.Judgement == nil {
		return "it is not judged yet"
	}
	return v.Judgement.Sentence
}

// shortSentence is the sentence behind the name of the version, which it mostly
// begins with.
func shortSentence(v *api.ModelVersion) string {
	return strings.TrimPrefix(sentenceOf(v), fmt.Sprintf("version %d of %s ", v.Number, v.Model))
}

const shownChanges = 5

// showChanges prints the newest changes of the champion, the newest first.
func showChanges(w io.Writer, m *api.ModelWhole) {
	if len(m.Changes) == 0 {
		return
	}
	fmt.Fprintln(w, "\nThe champion has changed:")
	for i, c := range slices.Backward(m.Changes) {
		if i < len(m.Changes)-shownChanges {
			fmt.Fprintf(w, "  … and %s before\n", count(i+1, "time"))
			break
		}
		fmt.Fprintf(w, "  %s  %s\n", clock(c.At), harmless(changeText(&c)))
	}
}

func changeText(c *tidemill.Change) string {
	from := "none"
	if c.Before != 0 {
		from = "version " + strconv.Itoa(c.Before)
	}
	by := " by " + orSomebody(c.By)
	if c.Action == tidemill.ActionJudge {
		by = " by its gate"
	}
	what := map[tidemill.Action]string{tidemill.ActionJudge: "promoted", tidemill.ActionPromote: "promoted", tidemill.ActionRollback: "rolled back", tidemill.ActionPin: "pinned"}[c.Action]
	return strings.TrimSuffix(fmt.Sprintf("%s → version %d, %s%s: %s", from, c.Version, first(what, string(c.Action)), by, c.Reason), ": ")
}

// showVerdict prints what the gate says of a version: the sentence, and each
// clause with its values.
func showVerdict(w io.Writer, m *api.ModelWhole, v *api.ModelVersion) {
	fmt.Fprintf(w, "\nVersion %d, %s: %s\n", v.Number, stateOfVersion(m, v), harmless(shortSentence(v)))
	if v.Judgement == nil {
		return
	}
	for i := range v.Judgement.Clauses {
		c := &v.Judgement.Clauses[i]
		mark := "holds"
		if !c.Passed {
			mark = "FAILS"
		}
		fmt.Fprintf(w, "  %s  %s\n", mark, harmless(c.Text))
		if text := clauseText(c); text != "" {
			fmt.Fprintf(w, "         %s\n", harmless(text))
		}
	}
	if v.Judgement.On == tidemill.GateOnRecorded {
		fmt.Fprintln(w, "  The champion's figures are those it was registered with: of other data, perhaps.")
	}
}

// clauseText is what a clause names, with its values, and its note.
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

// showOrigin prints what a version came from.
func showOrigin(w io.Writer, v *api.ModelVersion, now time.Time) error {
	fmt.Fprintln(w)
	say, flush := sayer(w)
	say("made by", "run "+v.Run+", begun "+age(now.Sub(v.Began))+" ago, took "+roughSpan(v.Ended.Sub(v.Began))+", for "+count(v.Causes, "event"))
	for i := range v.Inputs {
		say("learnt from", inputText(&v.Inputs[i]))
	}
	say("on", placeOfTry(&tidemill.Attempt{Where: v.Where}))
	say("code", v.Image)
	say("made", fmt.Sprintf("%s, %s, tree %s", count(v.Files, "file"), size(v.Bytes), v.Artifact))
	return flush()
}
