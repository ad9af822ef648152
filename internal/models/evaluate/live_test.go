package evaluate

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
)

// answered is an outcome of the tests' model.
func answered(label, truth string, score float64, day int) tidemill.OutcomeData {
	return tidemill.OutcomeData{Label: label, Truth: truth, Score: score, Revision: 1, Basis: tidemill.OutcomeLabelled,
		Answered: time.Date(2026, 1, 1+day, 12, 0, 0, 0, time.UTC)}
}

// corrected returns the next revision of an outcome.
func corrected(o tidemill.OutcomeData, truth string) tidemill.OutcomeData {
	o.Before, o.Truth, o.Revision = o.Truth, truth, o.Revision+1
	return o
}

func TestLiveFiguresAreCounted(t *testing.T) {
	t.Parallel()
	var m tidemill.Measured
	first := answered("fraud", "legit", 0.75, 0)
	for _, o := range []tidemill.OutcomeData{first, answered("legit", "legit", 0.95, 0), answered("legit", "legit", 1, 1), corrected(first, "fraud"), answered("legit", "fraud", 0, 1)} {
		if !Count(&m, &o) {
			t.Fatalf("%+v is not counted", o)
		}
	}
	if lost := corrected(answered("legit", "stolen", 0.5, 0), "legit"); Count(&m, &lost) {
		t.Error("a correction of an unknown outcome is counted")
	}
	at := func(day int) time.Time { return time.Date(2026, 1, 1+day, 12, 0, 0, 0, time.UTC) }
	want := tidemill.Measured{Folded: 5, First: at(0), Last: at(1), Answers: 4, Right: 3, Corrected: 1, Labels: []string{"fraud", "legit", "stolen"},
		Cells: [][3]int{{0, 0, 1}, {0, 1, 1}, {1, 1, 2}}, Bins: make([]tidemill.Bin, 10), Days: []tidemill.Day{{Day: "2026-01-01", Answers: 2, Right: 2}, {Day: "2026-01-02", Answers: 2, Right: 1}}}
	want.Bins[7], want.Bins[9] = tidemill.Bin{Answers: 1, Right: 1, Score: 750_000}, tidemill.Bin{Answers: 2, Right: 2, Score: 1_950_000}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("got  %+v\nwant %+v", m, want)
	}
	f := LiveFigures(&m)
	if e := f.Accuracy; e.Value != 0.75 || e.Low > 0.4 || e.High < 0.9 {
		t.Errorf("the accuracy is %+v", e)
	}
	if len(f.Classes) != 2 || f.Classes[0].Label != "fraud" || f.Classes[0].Support != 2 || f.Classes[0].Recall.Value != 0.5 || f.Classes[1].Precision.Value != 2.0/3 || len(f.Cells) != 3 {
		t.Errorf("the classes are %+v, the cells %+v", f.Classes, f.Cells)
	}
	if e, ok := CalibrationError(&m); !ok || math.Abs(e-(0.25+0.05)/3) > 1e-12 {
		t.Errorf("the calibration error is %v, %t", e, ok)
	}
	if _, ok := CalibrationError(&tidemill.Measured{}); ok {
		t.Error("no score has a calibration error")
	}
}

// However labels are corrected, the figures are those of the last truths, and they survive being stored.
func TestLiveFiguresAreThoseOfTheLastTruths(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		label := func() string { return fmt.Sprint("l", r.IntN(1+r.IntN(30))) }
		var m tidemill.Measured
		var all []tidemill.OutcomeData
		for range 300 {
			o := answered(label(), label(), float64(r.IntN(1_000_001))/1e6, r.IntN(20))
			if len(all) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(all))
				o = corrected(all[i], label())
				all[i] = o
			} else {
				all = append(all, o)
			}
			if !Count(&m, &o) {
				t.Fatalf("seed %d: %+v is not counted", seed, o)
			}
			if r.IntN(20) == 0 {
				data, err := json.Marshal(m)
				if m = (tidemill.Measured{}); err != nil || json.Unmarshal(data, &m) != nil {
					t.Fatal(err)
				}
			}
		}
		compareLive(t, seed, &m, all)
	}
}

// compareLive compares figures with those of a simple count.
func compareLive(t *testing.T, seed uint64, m *tidemill.Measured, all []tidemill.OutcomeData) {
	t.Helper()
	name := func(label string) string {
		if i := slices.Index(m.Labels, label); i >= 0 && i < tidemill.MeasuredLabels {
			return label
		}
		return tidemill.OtherLabel
	}
	cells, days, bins, right := map[[2]string]int{}, map[string]tidemill.Day{}, make([]tidemill.Bin, 10), 0
	for _, o := range all {
		cells[[2]string{name(o.Truth), name(o.Label)}]++
		d := days[o.Answered.Format(time.DateOnly)]
		b := &tidemill.Bin{}
		if o.Score > 0 {
			b = &bins[min(int(math.Round(o.Score*1e6))/100_000, 9)]
		}
		d.Answers, b.Answers, b.Score = d.Answers+1, b.Answers+1, b.Score+int64(math.Round(o.Score*1e6))
		if o.Right() {
			right, d.Right, b.Right = right+1, d.Right+1, b.Right+1
		}
		days[o.Answered.Format(time.DateOnly)] = d
	}
	got := map[[2]string]int{}
	for _, c := range m.Cells {
		got[[2]string{m.Labels[c[0]], m.Labels[c[1]]}] += c[2]
	}
	if !reflect.DeepEqual(got, cells) || m.Answers != len(all) || m.Right != right || len(m.Days) != len(days) || !slices.Equal(m.Bins, bins) {
		t.Fatalf("seed %d: %+v, want %v, %v, %v", seed, m, cells, days, bins)
	}
	for _, d := range m.Days {
		if want := days[d.Day]; d.Answers != want.Answers || d.Right != want.Right {
			t.Fatalf("seed %d: day %+v, want %+v", seed, d, want)
		}
	}
}

// A model that answers for years keeps the newest days. A correction of an older answer changes only the sums.
// A truth may be as long as an event. The figures of a version fit into a fact.
func TestLongTruthsAreCut(t *testing.T) {
	t.Parallel()
	var m tidemill.Measured
	for i := range 30 {
		o := answered("legit", fmt.Sprint(i, strings.Repeat("ü", 250_000)), 0.5, 0)
		later := corrected(o, "legit")
		if !Count(&m, &o) || i%2 == 0 && !Count(&m, &later) {
			t.Fatal("an outcome with a long truth is not counted")
		}
	}
	if text, err := json.Marshal(&m); err != nil || len(text) > 10_000 || m.Answers != 30 || m.Corrected != 15 {
		t.Errorf("%d bytes, %d answers, %d corrected, %v", len(text), m.Answers, m.Corrected, err)
	}
}

func TestLiveDaysAreBounded(t *testing.T) {
	t.Parallel()
	var m tidemill.Measured
	var first tidemill.OutcomeData
	for day := range 100 {
		o := answered("a", "a", 0.5, day)
		if day == 0 {
			first = o
		}
		Count(&m, &o)
	}
	late, again := answered("a", "a", 0.5, 3), corrected(first, "b")
	if !Count(&m, &late) || !Count(&m, &again) {
		t.Error("an old answer is not counted")
	}
	if len(m.Days) != tidemill.MeasuredDays || m.Days[0].Day != "2026-03-12" || m.Answers != 101 || m.Right != 100 {
		t.Errorf("%d days from %s; %d of %d right", len(m.Days), m.Days[0].Day, m.Right, m.Answers)
	}
}

// The difference to the gate is named, and whether it may be chance.
func TestLiveIsComparedWithTheGate(t *testing.T) {
	t.Parallel()
	gate := 0.91
	for _, c := range []struct {
		right, answers int
		gate           *float64
		want           string
	}{
		{999, 1204, &gate, "gate said 0.910, live accuracy 0.830 over 1204 answers: 8.0 points lower"},
		{98, 100, &gate, "gate said 0.910, live accuracy 0.980 over 100 answers: 7.0 points higher"},
		{9, 10, &gate, "gate said 0.910, live accuracy 0.900 over 10 answers: the difference of 1.0 points may be chance"},
		{1, 1, nil, "live accuracy 1.000 over 1 answer"},
	} {
		if got := CompareLive(wilsonShare(c.right, c.answers), c.answers, c.gate); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
