package remote

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/data/ledger/fold"
)

// updateGolden is the variable that makes the tests write the golden files.
const updateGolden = "UPDATE_GOLDEN"

// expect requires parts of a text.
func expect(t *testing.T, what, text string, wanted ...string) {
	t.Helper()
	for _, w := range wanted {
		if !strings.Contains(text, w) {
			t.Errorf("%s lacks %q:\n%s", what, w, text)
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv(updateGolden) != "" {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

func about(v float64) tidemill.Estimate {
	return tidemill.Estimate{Value: v, Low: max(v-0.05, 0), High: min(v+0.05, 1)}
}

// figuresOf computes figures from counts. Each row has the predictions for one true label.
func figuresOf(labels []string, counts [][]int) *tidemill.Figures {
	f := &tidemill.Figures{}
	said, right := make([]int, len(labels)), 0
	for t, row := range counts {
		c := tidemill.Class{Label: labels[t]}
		for p, n := range row {
			if c.Support += n; n > 0 {
				f.Cells = append(f.Cells, tidemill.Cell{Truth: t, Predicted: p, Count: n})
			}
			said[p] += n
		}
		right += row[t]
		f.Examples += c.Support
		f.Classes = append(f.Classes, c)
	}
	for i := range f.Classes {
		c, n := &f.Classes[i], float64(counts[i][i])
		c.Predicted, c.Recall, c.Precision = said[i], about(n/float64(max(c.Support, 1))), about(n/float64(max(said[i], 1)))
		c.F1 = 2 * n / float64(max(c.Support+said[i], 1))
	}
	f.Accuracy, f.MacroF1 = about(float64(right)/float64(f.Examples)), about(0.8)
	return f
}

func threeLabels() *tidemill.Figures {
	return figuresOf([]string{"cancel", "greet", "track order"}, [][]int{{41, 0, 2}, {0, 38, 1}, {5, 0, 113}})
}

// lookOfTest returns a model whose third version was refused by its gate.
func lookOfTest() lookedAt {
	at := time.Now().Add(-50 * time.Hour)
	version := func(n int, s tidemill.VersionState, accuracy float64, sentence string, passed bool) api.ModelVersion {
		return api.ModelVersion{State: s, Version: tidemill.Version{Model: "intent/bot-42", Number: n, Artifact: "tree", Bytes: 2048, Files: 2, Metrics: map[string]float64{"accuracy": accuracy, "macroF1": accuracy - 0.01},
			Origin: tidemill.Origin{Run: strings.Repeat(string(rune('a'+n)), 26), Recipe: "intent", Key: "bot-42", Attempt: 1, Began: at.Add(time.Duration(n) * time.Hour), Ended: at.Add(time.Duration(n)*time.Hour + 3*time.Second), Causes: n,
				Inputs: []tidemill.Input{{Name: "examples", Dataset: "bots/bot-42", Branch: "main", Commit: fmt.Sprint("commit", n), Files: 1, Bytes: 900}}, Where: tidemill.Where{Node: "laptop", Image: "sha256:abc"}}},
			Judgement: &tidemill.Judgement{Passed: passed, Sentence: sentence, Against: n - 1}}
	}
	m := &api.ModelWhole{Model: fold.Model{Name: "intent/bot-42", Key: "bot-42", Recipe: "intent", Last: 3, Champion: 2, Previous: 1, Pin: &fold.Pin{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), By: "ada", Reason: "the audit"}},
		All: []api.ModelVersion{version(3, tidemill.VersionRefused, 0.81, "version 3 of intent/bot-42 is refused: it is worse than version 2\x1b[2J", false), version(2, tidemill.VersionPromoted, 0.93, "promoted: both clauses hold", true), version(1, tidemill.VersionPromoted, 0.9, "promoted: there was no champion", true)}}
	for i := range m.All {
		v := &m.All[len(m.All)-1-i]
		m.Versions = append(m.Versions, fold.Held{Number: v.Number, Run: v.Run, State: v.State})
	}
	m.Changes = []fold.Change{{At: time.Date(2026, 1, 1, 3, 4, 5, 0, time.UTC), Action: tidemill.ActionJudge, Version: 1},
		{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Action: tidemill.ActionPromote, Version: 2, Before: 1, By: "ada", Reason: "it is better"}}
	refused := &m.All[0]
	refused.Judgement.Clauses = []tidemill.Clause{{Text: "metrics.accuracy >= 0.8", Passed: true, Values: map[string]float64{"metrics.accuracy": 0.81}},
		{Text: "metrics.accuracy >= champion.metrics.accuracy - 0.01", Values: map[string]float64{"metrics.accuracy": 0.81, "champion.metrics.accuracy": 0.93}, Note: "0.11 short"}}
	refused.Measured = &tidemill.Report{Metrics: map[string]float64{"accuracy": 0.81, "loss": 0.3}, Claimed: map[string]float64{"accuracy": 0.99}, Measured: threeLabels(), Notes: []string{"a row had no truth"},
		Champion: &tidemill.Beside{Version: 2, Metrics: map[string]float64{"accuracy": 0.96}, Measured: figuresOf([]string{"cancel", "greet", "track order"}, [][]int{{43, 0, 0}, {1, 38, 0}, {1, 0, 117}}), Lead: &tidemill.Estimate{Value: -0.03, Low: -0.05, High: -0.01}}}
	return lookedAt{m, refused}
}

// Live figures are shown beside the gate's; the matrix and the days only of the version that is looked at.
func TestLiveFiguresAreShown(t *testing.T) {
	t.Parallel()
	look, f, e := lookOfTest(), threeLabels(), 0.125
	look.model.Live = []api.LiveFigures{
		{Scorer: "intents", Version: 3, Sentence: "gate said 0.910, live accuracy 0.830 over 1204 answers: 8.0 points lower", Answers: 1204, Right: 999, Assumed: 10, Corrected: 1, Accuracy: f.Accuracy, CalibrationError: &e,
			Classes: f.Classes, Cells: f.Cells, Days: []tidemill.Day{{Day: "2026-01-01", Answers: 1000, Right: 900}, {Day: "2026-01-02", Answers: 204, Right: 99}}},
		{Scorer: "intents\x1b", Version: 2, Sentence: "live accuracy 0.5 over 2 answers"}}
	var b bytes.Buffer
	if err := showLive(&b, look, true, show.Screen{Width: 100}); err != nil {
		t.Fatal(err)
	}
	golden(t, "live.txt", b.String())
	b.Reset()
	if err := showLive(&b, look, false, show.Screen{Width: 100}); err != nil || strings.Contains(b.String(), "version 2 in") {
		t.Errorf("one version: %v\n%s", err, &b)
	}
}

var instant = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}`)

func TestAModelIsShown(t *testing.T) {
	t.Parallel()
	look := lookOfTest()
	var b bytes.Buffer
	if err := showModel(&b, look, true, show.Screen{Width: 100}, look.model.All[0].Began.Add(3*time.Hour)); err != nil {
		t.Fatal(err)
	}
	golden(t, "model.txt", instant.ReplaceAllString(b.String(), "2026-01-02 03:04:05.000"))
	if strings.Contains(b.String(), "\x1b") {
		t.Errorf("a terminal obeys\n%q", &b)
	}
	b.Reset()
	look.model.Versions, look.model.All, look.version, look.model.Champion = nil, nil, nil, 0
	if err := showModel(&b, look, true, show.Screen{Width: 100}, time.Now()); err != nil {
		t.Fatal(err)
	}
	expect(t, "one without a version", b.String(), "champion  none", "No version is stored.")
}

// A version of a recipe without a gate was not promoted by one.
func TestAPromotionWithoutAGate(t *testing.T) {
	t.Parallel()
	m := lookOfTest().model
	c := fold.Change{Action: tidemill.ActionJudge, Version: 1}
	for want, clauses := range map[string][]tidemill.Clause{"none → version 1, promoted without a gate": nil, "none → version 1, promoted by its gate": {{Passed: true}}} {
		m.All[2].Judgement.Clauses = clauses
		if got := changeText(m, &c); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for want, c := range map[string]fold.Change{
		"version 1 → version 2, promoted by its canary":         {Action: tidemill.ActionSettle, Version: 2, Before: 1},
		"version 2 → version 1, restored by ana: it was better": {Action: tidemill.ActionRollback, Version: 1, Before: 2, By: "ana", Reason: "it was better"},
	} {
		if got := changeText(m, &c); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A version of a rollout that was given up is not offered for promotion first.
func TestAVersionOfARolloutThatWasGivenUp(t *testing.T) {
	t.Parallel()
	look := lookOfTest()
	v := &look.model.All[0]
	look.model.Pin, v.State, v.Rollout = nil, tidemill.VersionAwaiting, "intent/3"
	v.Judgement.Hold = "rollout intent/3, in which its run took part, was stopped or aborted"
	want := "\nNext: tidemill rollouts show intent says why the rollout of its change has not gone on\n      tidemill promote intent/bot-42@3 makes it the champion anyway\n"
	if got := nextForModel(look); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	v.Judgement.Hold = "promotions are frozen by ada"
	if got := nextForModel(look); !strings.HasPrefix(got, "\nNext: tidemill promote intent/bot-42@3\n") {
		t.Errorf("while promotions are frozen: %q", got)
	}
}

func TestMatrixGolden(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	draw := func(title string, f *tidemill.Figures, s show.Screen) {
		fmt.Fprintf(&b, "-- %s, %d columns, colours %v\n", title, s.Width, s.Colours)
		d := drawMatrix("version 7", f, s)
		for _, line := range d.lines {
			b.WriteString(strings.ReplaceAll(line, "\x1b", "ESC") + "|\n")
		}
	}
	draw("three labels", threeLabels(), show.Screen{Width: 100})
	draw("with colours", threeLabels(), show.Screen{Width: 100, Colours: true})
	draw("narrow", threeLabels(), show.Screen{Width: 34})
	draw("cut labels that are alike", figuresOf([]string{"refund of a parcel", "refund of a ticket"}, [][]int{{12, 3}, {0, 1234}}), show.Screen{Width: 60})
	draw("a label that nothing has", figuresOf([]string{"", "b\x1b[2J"}, [][]int{{0, 0}, {2, 5}}), show.Screen{Width: 60})
	draw("too narrow", threeLabels(), show.Screen{Width: 24})
	golden(t, "matrix.txt", b.String())
}

// A picture has exactly its width, and is never wider than the screen, for all labels.
func TestAMatrixFitsTheScreen(t *testing.T) {
	t.Parallel()
	colour := regexp.MustCompile("\x1b\\[[0-9;]*m")
	drawn := 0
	for n := range 30 {
		labels, counts := make([]string, n), make([][]int, n)
		for i := range n {
			labels[i], counts[i] = strings.Repeat("é", 1+i*7%23)+fmt.Sprint(i), make([]int, n)
			counts[i][i], counts[i][(i*7+1)%n] = 1+i*i*i, 1+i
		}
		f := figuresOf(labels, counts)
		for width := 1; width < 260; width += 3 {
			d := drawMatrix(strings.Repeat("a title ", 9), f, show.Screen{Width: width, Colours: width%2 == 0})
			if len(d.lines) > 0 {
				drawn++
			}
			for _, line := range d.lines {
				if seen := len([]rune(colour.ReplaceAllString(line, ""))); seen != d.width || seen > width {
					t.Fatalf("%d labels on %d columns: %d are drawn and %d said\n%s", n, width, seen, d.width, line)
				}
			}
		}
	}
	if drawn < 500 {
		t.Errorf("only %d were drawn", drawn)
	}
}

func TestDrawingsStandBesideEachOtherWhereTheyFit(t *testing.T) {
	t.Parallel()
	a, b := picture{[]string{"aa", "bb"}, 2}, picture{[]string{"xxx"}, 3}
	for width, want := range map[int]string{9: "aa    xxx\nbb    ", 8: "aa\nbb\n\nxxx"} {
		if got := strings.Join(beside(a, b, show.Screen{Width: width}), "\n"); got != want {
			t.Errorf("%d columns: %q, want %q", width, got, want)
		}
	}
	if got := beside(a, picture{}, show.Screen{Width: 80}); len(got) != 2 {
		t.Errorf("one alone is %q", got)
	}
}

func TestManyLabelsAreListedByTheirWorst(t *testing.T) {
	t.Parallel()
	labels, counts := make([]string, 60), make([][]int, 60)
	for i := range labels {
		labels[i], counts[i] = fmt.Sprintf("label-%02d", i), make([]int, 60)
		counts[i][i], counts[i][(i+1)%60] = 50, i%7
	}
	var b bytes.Buffer
	showMeasured(&b, 7, &tidemill.Report{Measured: figuresOf(labels, counts)}, show.Screen{Width: 100})
	expect(t, "the list", b.String(), "There are 60 labels, too many for a matrix of 100 columns", "label-06 predicted as label-07: 6 of 56 (11%)", "Lowest recall:", "label-06: 89% of 56")
	if n := strings.Count(b.String(), " predicted as "); n != worstAlone {
		t.Errorf("%d confusions are listed", n)
	}
	b.Reset()
	showMeasured(&b, 7, &tidemill.Report{Measured: figuresOf([]string{"a", "b"}, [][]int{{1, 0}, {0, 1}})}, show.Screen{Width: 100})
	expect(t, "one without a fault", b.String(), "No example was misclassified.")
}

func TestModelsAreTabulated(t *testing.T) {
	t.Parallel()
	now := time.Now()
	began := now.Add(-9 * 24 * time.Hour)
	var b bytes.Buffer
	all := []api.ModelShown{
		{Name: "intent/bot-1", Champion: 7, Newest: 8, State: tidemill.VersionAwaiting, Versions: 5, Began: &began, Metrics: map[string]float64{"accuracy": 0.931, "macroF1": 0.9}, Pinned: true, PinnedBy: "ada\x1b"},
		{Name: "intent/bot-2", Newest: 1, State: tidemill.VersionRefused, Versions: 1, Why: "it has no champion: its newest version is refused"},
		{Name: "intent/bot-3", Retired: &now},
		{Name: "intent/bot-4", Champion: 3, Newest: 3, Versions: 3, Unserved: &fold.Unserved{Scorer: "intents", Kept: 2, Error: "it is cut off"}},
		{Name: "intent/bot-5", Champion: 1, Newest: 2, State: tidemill.VersionAwaiting, Versions: 2, Hold: "promotions are frozen by ada", Unserved: &fold.Unserved{Scorer: "intents", Error: "ONNX Runtime is missing"}},
	}
	if err := show.Columns(&b, modelRows(all, now)); err != nil {
		t.Fatal(err)
	}
	adviseOnModels(&b, &api.Models{Models: all, Next: "intent/bot-3", Total: 1234})
	golden(t, "models.txt", b.String())
}

// A promotion is suggested only where it would not be refused.
func TestAdviceOnModels(t *testing.T) {
	t.Parallel()
	waits := func(change func(*api.ModelShown)) []api.ModelShown {
		m := api.ModelShown{Name: "m/b", Newest: 2, State: tidemill.VersionAwaiting}
		change(&m)
		return []api.ModelShown{{Name: "m/a"}, m, {Name: "m/c", Newest: 1, State: tidemill.VersionAwaiting}}
	}
	for want, change := range map[string]func(*api.ModelShown){
		"m/b@2 shows the version that waits, tidemill promote m/b@2 promotes it.":       func(*api.ModelShown) {},
		"m/b@2 shows the version that waits, and why it cannot be promoted yet.":        func(m *api.ModelShown) { m.Lacks = true },
		"m/b@2 shows the version that waits, and why it cannot be promoted yet. pinned": func(m *api.ModelShown) { m.Pinned = true },
		"m/b shows why its champion is not served.":                                     func(m *api.ModelShown) { m.Unserved = &fold.Unserved{} },
		"m/c@1 shows the version that waits, tidemill promote m/c@1 promotes it.":       func(m *api.ModelShown) { m.State = tidemill.VersionRefused },
	} {
		var b bytes.Buffer
		adviseOnModels(&b, &api.Models{Models: waits(change)})
		if got := b.String(); got != "\nNext: tidemill models show "+strings.TrimSuffix(want, " pinned")+"\n" {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestVersionsAreCompared(t *testing.T) {
	t.Parallel()
	look := lookOfTest()
	a, b := look.model.All[1], look.model.All[0]
	a.Measured = &tidemill.Report{Metrics: map[string]float64{"accuracy": 0.96, "loss": 120.5}, Measured: figuresOf([]string{"cancel", "greet", "only in A"}, [][]int{{40, 0, 0}, {20, 18, 0}, {0, 0, 3}})}
	c := compareVersions(&a.Version, &b.Version, a.Measured, b.Measured)
	var out bytes.Buffer
	if err := c.show(&out); err != nil {
		t.Fatal(err)
	}
	golden(t, "compare.txt", out.String())
	back := compareVersions(&b.Version, &a.Version, b.Measured, nil)
	if back.SameData != "the run of A measured B too" || len(back.Notes) != 2 {
		t.Errorf("the other way round it is %+v", back)
	}
	expect(t, "the notes", back.Notes[1], "B has no predictions")
}

// Figures of different data are no comparison: they have the reason, no difference, and are never
// clear. Figures of the same commits are one, unless the runs counted other examples of them.
func TestFiguresOfDifferentDataAreNotCompared(t *testing.T) {
	t.Parallel()
	look := lookOfTest()
	second, first := look.model.All[1].Version, look.model.All[2].Version
	good, bad := figuresOf([]string{"a", "b"}, [][]int{{50, 0}, {0, 50}}), figuresOf([]string{"a", "b"}, [][]int{{25, 25}, {25, 25}})
	report := func(f *tidemill.Figures) *tidemill.Report {
		return &tidemill.Report{Metrics: map[string]float64{"accuracy": f.Accuracy.Value}, Measured: f}
	}
	same := first
	same.Inputs = second.Inputs
	none, from := second, second
	none.Inputs, from.Inputs = nil, []tidemill.Input{{Name: "examples", URI: "https://data.example/x"}}
	for name, c := range map[string]struct {
		a, b    *tidemill.Version
		of      *tidemill.Figures
		because string // empty if they are comparable
	}{
		"the same commits":             {&same, &second, bad, ""},
		"different commits":            {&first, &second, bad, "A on bots/bot-42@commit1, B on bots/bot-42@commit2"},
		"other examples of the commit": {&same, &second, figuresOf([]string{"a", "b"}, [][]int{{25, 24}, {25, 25}}), "the runs counted different examples of bots/bot-42@commit2, A 99 and B 100"},
		"as many of other labels":      {&same, &second, figuresOf([]string{"a", "b"}, [][]int{{25, 24}, {25, 26}}), "counted different examples"},
		"no inputs":                    {&none, &none, bad, "the data of a run without inputs is not known"},
		"URIs":                         {&from, &from, bad, "A on https://data.example/x"},
	} {
		got := compareVersions(c.a, c.b, report(c.of), report(good))
		f := &got.Figures[0]
		if is := c.because == ""; f.Same != is || f.Clear != is || got.Labels[0].Recall.Clear != is || (differenceOf(f) != "-") != is || (got.SameData != "") != is || !strings.Contains(got.OtherData, c.because) || (got.OtherData == "") != is {
			t.Errorf("%s: %+v", name, got)
		}
		var out bytes.Buffer
		if err := got.show(&out); err != nil {
			t.Fatal(err)
		}
		if c.because == "" {
			expect(t, name, out.String(), "On the same data, because both runs had bots/bot-42@commit2:", "clear")
			continue
		}
		expect(t, name, out.String(), "Not comparable, because ", "Not comparable, for the same reason:")
		if strings.Contains(out.String(), "On the same data") || strings.Contains(out.String(), "clear") {
			t.Errorf("%s: %s", name, &out)
		}
	}
}

func TestADifferenceIsClearWhereTheIntervalsDoNotMeet(t *testing.T) {
	t.Parallel()
	at := func(low, v, high float64) *tidemill.Estimate {
		return &tidemill.Estimate{Value: v, Low: low, High: high}
	}
	for _, c := range []struct {
		a, b *tidemill.Estimate
		want bool
	}{
		{at(0.8, 0.85, 0.9), at(0.91, 0.93, 0.97), true},
		{at(0.8, 0.85, 0.9), at(0.88, 0.93, 0.97), false},
		{at(0.91, 0.93, 0.97), at(0.8, 0.85, 0.9), true},
		{at(0.8, 0.85, 0.9), nil, false},
		{at(0.8, 0.8, 0.8), at(0.9, 0.9, 0.9), false}, // the figures have no intervals
	} {
		if got := isClear(c.a, c.b); got != c.want {
			t.Errorf("%v and %v: %v", c.a, c.b, got)
		}
	}
}

func TestVersionsAreFound(t *testing.T) {
	t.Parallel()
	m := lookOfTest().model
	for which, want := range map[string]int{"": 2, "champion": 2, "previous": 1, "newest": 3, "3": 3} {
		if n, err := findVersion(m, which); n != want || err != nil {
			t.Errorf("@%s: %d, %v", which, n, err)
		}
	}
	_, err := findVersion(m, "9")
	expect(t, "an unknown one", err.Error(), "has no version 9", "it has 1, 2, 3")
	m.Champion, m.Previous = 0, 0
	_, err = findVersion(m, "champion")
	expect(t, "no champion", err.Error(), "tidemill models show intent/bot-42@newest shows why", "tidemill promote intent/bot-42@newest --force")
	m.Versions[len(m.Versions)-1].State = tidemill.VersionAwaiting
	if _, err = findVersion(m, "champion"); strings.Contains(err.Error(), "--force") {
		t.Errorf("what awaits a person is not forced: %v", err)
	}
	_, err = findVersion(m, "previous")
	expect(t, "none before", err.Error(), "has no previous champion")
	m.Versions = nil
	_, err = findVersion(m, "")
	expect(t, "no version", err.Error(), "its next run registers one")
}

// A rollback without a version ends the canary, and takes back no champion.
func TestARollbackEndsACanary(t *testing.T) {
	t.Parallel()
	m := lookOfTest().model
	if n, err := findVersion(m, rollbackTo(m)); n != 1 || err != nil {
		t.Errorf("without a canary: %d, %v", n, err)
	}
	m.Canary = &fold.Canary{Version: 3}
	if n, err := findVersion(m, rollbackTo(m)); n != 3 || err != nil {
		t.Errorf("with a canary: %d, %v", n, err)
	}
	p := promotion{action: tidemill.ActionRollback}
	if got := p.next(&api.PromotionDone{Model: m.Name, Version: 3, Before: 2, Champion: 2}); got != "Next: tidemill promote intent/bot-42@3 --force promotes it anyway." {
		t.Errorf("after the end of a canary: %q", got)
	}
}

// An @ at the end means the whole model, if its name ends like that of a version.
func TestAModelWhoseNameEndsLikeAVersion(t *testing.T) {
	t.Parallel()
	if model, which, err := versionArg("intent/ana@3@"); model != "intent/ana@3" || which != "" || err != nil {
		t.Errorf("%s, %q, %v", model, which, err)
	}
	if _, _, err := versionArg("intent/ana@"); err == nil || !strings.Contains(err.Error(), "write a number, champion, previous or newest after the @") {
		t.Errorf("without a version after the @: %v", err)
	}
}

func TestWhatBecameOfManyModelsIsSummedUp(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	sum := promotionSum{out: &b}
	for i := range 25 {
		sum.add(&api.PromotionDone{Model: fmt.Sprint("intent/bot-", i), Done: "would have version 1 as its champion, previously version 2", Refused: i%5 == 0})
	}
	sum.end(true)
	expect(t, "the sum", b.String(), "intent/bot-0  skipped: ", "intent/bot-1  would have", "… and 5 more\n", "25 models: 20 would be rolled back, 5 skipped.\n", "without --dry-run, after tidemill promotions freeze")
	none := promotionSum{out: &b}
	none.add(&api.PromotionDone{Refused: true})
	if sum.failure() != nil || none.failure() == nil {
		t.Error("it is a failure where nothing could be done, and only there")
	}
}

func TestARefusalSaysWhatCanBeDone(t *testing.T) {
	t.Parallel()
	m := lookOfTest().model
	m.Changes, m.Pin = nil, nil
	for _, c := range []struct {
		action  tidemill.Action
		version int
		says    string
	}{
		{tidemill.ActionPromote, 3, "--force promotes it anyway"},
		{tidemill.ActionPromote, 2, "nothing needs to be done"},
		{tidemill.ActionPromote, 9, "tidemill models show intent/bot-42 lists"},
		{tidemill.ActionRollback, 3, "tidemill promote intent/bot-42@3 --force promotes one that was never the champion"},
		{tidemill.ActionPin, 3, "tidemill promote intent/bot-42@3 --force"},
		{tidemill.ActionUnpin, 0, ""},
	} {
		if got := hintOn(c.action, m, c.version); (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%s %d: %q, want %q", c.action, c.version, got, c.says)
		}
	}
	m.Pin = &fold.Pin{}
	if got := hintOn(tidemill.ActionRollback, m, 1); got != "tidemill unpin intent/bot-42 first" {
		t.Errorf("of one that is pinned: %q", got)
	}
	if got := hintOn(tidemill.ActionPromote, m, 2); got != "nothing needs to be done" {
		t.Errorf("of the champion, which is pinned: %q", got)
	}
}

func TestWhatBecameOfARun(t *testing.T) {
	t.Parallel()
	m := lookOfTest().model
	if got := becameText(m, m.All[0].Run); !strings.HasPrefix(got, "version 3 of intent/bot-42 (refused): it is worse") {
		t.Errorf("got %q", got)
	}
	if got := becameText(m, "none"); !strings.Contains(got, "not registered yet") {
		t.Errorf("got %q", got)
	}
}

// A key may begin or end with a space, and is typed so.
func TestATypedKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line, key string
		want      bool
	}{
		{"bot-42\n", "bot-42", true}, {" bot-42 \r\n", "bot-42", true}, {"bot-42", "bot-42", true}, {"bot-42 \n", "bot-42 ", true}, {" bot-42\r\n", " bot-42", true}, {" \n", " ", true},
		{"bot-42\n", "bot-42 ", false}, {"bot-43\n", "bot-42", false}, {"\n", "bot-42", false}, {"", " ", false},
	} {
		if got := isKey(c.line, c.key); got != c.want {
			t.Errorf("%q for %q: %t", c.line, c.key, got)
		}
	}
}
