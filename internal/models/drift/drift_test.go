package drift

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
	"unsafe"
)

// The mean of a factor is at most 2 whatever the true share is, computed over all possible samples. So half of it is
// an e-value, although the reference is small and its share only an estimate.
func TestAFactorIsAnEValue(t *testing.T) {
	t.Parallel()
	for _, of := range []int{100, 500} {
		m := NewMemo(of)
		for n := block; n <= blocks*block; n *= 2 {
			for _, share := range []float64{1e-4, 0.003, 0.02, 0.1, 0.3, 0.5} {
				var mean float64
				for r := range of + 1 {
					p := m.chance(r, of, share)
					if p < 1e-12 {
						continue
					}
					for k := range n + 1 {
						mean += p * m.chance(k, n, share) * m.factor(r, of, k, n)
					}
				}
				if mean > 2 {
					t.Errorf("share %v, %d values after %d: the mean of the factor is %v, at most 2 is promised", share, n, of, mean)
				}
			}
		}
	}
}

// The mean stays at most 2 if the reference has exactly the true share, as that of a very large sample has.
func TestALargeReferenceIsAnEValue(t *testing.T) {
	t.Parallel()
	for _, of := range []int{100, 500} {
		m := NewMemo(of)
		for n := block; n <= blocks*block; n *= 2 {
			for r := 0; 2*r <= of; r += of / 50 {
				share, mean := float64(r)/float64(of), 0.0
				for k := range n + 1 {
					if r > 0 || k == 0 {
						mean += math.Exp(m.whole[n]-m.whole[k]-m.whole[n-k]+float64(k)*math.Log(max(share, 1e-300))+float64(n-k)*math.Log1p(-share)) * m.factor(r, of, k, n)
					}
				}
				if mean > 2 {
					t.Errorf("share %v, %d values after %d: the mean of the factor is %v, at most 2 is promised", share, n, of, mean)
				}
			}
		}
	}
}

// A reference of predictions has their shares and the size of a reference.
func TestPredictionsFillAReference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 5))
	for range 1000 {
		counts, all, reference := make([]int, 1+r.IntN(bins)), 0, 100+r.IntN(900)
		for i := range counts {
			counts[i] = r.IntN(1000) * r.IntN(2)
			all += counts[i]
		}
		f := new(Figure)
		if got := f.Prefill(Shares, counts, reference); got != (all >= reference) {
			t.Fatalf("%d predictions for a reference of %d: %v", all, reference, got)
		} else if !got {
			if *f != (Figure{}) {
				t.Fatal("too few predictions have changed the figure")
			}
			continue
		}
		sum := 0
		for i, n := range f.Reference {
			sum += int(n)
			if i < len(counts) && math.Abs(float64(n)-float64(counts[i]*reference)/float64(all)) > 1 {
				t.Fatalf("bin %d has %d of %d, and the predictions %d of %d", i, n, reference, counts[i], all)
			}
		}
		if sum != reference || f.Seen != uint32(reference) {
			t.Fatalf("the reference has %d values, want %d", sum, reference)
		}
	}
}

// chance is the probability of k of n values.
func (m *Memo) chance(k, n int, share float64) float64 {
	return math.Exp(m.whole[n] - m.whole[k] - m.whole[n-k] + float64(k)*math.Log(share) + float64(n-k)*math.Log1p(-share))
}

// A simulated model: what its customers send, and how it answers.
type mill struct {
	r       *rand.Rand
	labels  []float64
	right   float64
	missing float64
	mean    float64
	country float64
}

func newMill(seed uint64) *mill {
	r := rand.New(rand.NewPCG(seed, 1))
	rare := 0.02 + 0.3*r.Float64()
	return &mill{r: r, labels: []float64{rare, 1 - 0.8*rare - 0.1, 0.1 - 0.2*rare}, right: 0.75 + 0.24*r.Float64(), missing: 0.03 * r.Float64(),
		mean: 10 * r.NormFloat64(), country: 0.5 + 0.4*r.Float64()}
}

// shift changes one property of the world, and the model's accuracy in two of five worlds.
func (m *mill) shift(how int) {
	switch how % 5 {
	case 0: // another language: other labels
		m.labels[0], m.labels[1] = m.labels[0]+0.25, m.labels[1]-0.25
	case 1: // the truth has changed
		m.right -= 0.25
	case 2: // a field is gone
		m.missing += 0.15
	case 3: // amounts in another currency
		m.mean += 1.2
	case 4: // another market
		m.country -= 0.35
	}
}

// answer counts one event, and returns the first turn other than Same.
func (m *mill) answer(w *Watch, of *Model, place uint64, at time.Time, each func(figure int, c Change, turn Turn)) {
	look := func(i int, full bool) {
		if full {
			if c, turn := w.Look(&of.Figures[i], at); turn != Same {
				each(i, c, turn)
			}
		}
	}
	label := "dispute"
	switch x := m.r.Float64(); {
	case x < m.labels[0]:
		label = "refund"
	case x < m.labels[0]+m.labels[1]:
		label = "order"
	}
	look(Label, of.Figures[Label].AddText(label, place, w.Reference))
	look(Score, of.Figures[Score].AddNumber(math.Sqrt(m.r.Float64()), place, w.Reference))
	look(Accuracy, of.Figures[Accuracy].AddYes(m.r.Float64() < m.right, place, w.Reference))
	look(Missing, of.Figures[Missing].AddYes(m.r.Float64() < m.missing, place, w.Reference))
	look(inputs, of.Input(0).AddNumber(m.mean+m.r.NormFloat64(), place, w.Reference))
	country := "NL"
	if m.r.Float64() < m.country {
		country = "DE"
	}
	look(inputs+1, of.Input(1).AddText(country, place, w.Reference))
}

// fleetFigures has the counts of a simulated day of a fleet.
type fleetFigures struct {
	found, late, falseAlarms int
	perAnswer                time.Duration
	bytes                    int
}

// simulate runs a fleet of models, each of which answers its reference and then perDay events in a day. The shifted
// models change in the middle of the day.
func simulate(t *testing.T, models, shifted, perDay int) (f fleetFigures) {
	w := NewWatch(500, 5)
	fleet, mills := make([]*Model, models), make([]*mill, models)
	for i := range fleet {
		fleet[i], mills[i] = NewModel(2), newMill(uint64(i))
	}
	begun, clock := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), time.Now()
	warm := w.Reference + first
	foundAt := make([]int, models)
	for n := range warm + perDay {
		at := begun.Add(24 * time.Hour * time.Duration(n) / time.Duration(perDay))
		changes := warm + perDay/2
		for i, m := range fleet {
			if n == changes && i < shifted {
				mills[i].shift(i)
			}
			mills[i].answer(w, m, uint64(n), at, func(figure int, c Change, turn Turn) {
				switch {
				case turn != Drifts:
				case i < shifted && n >= changes && foundAt[i] == 0:
					foundAt[i] = n - changes + 1
				case i < shifted && n >= changes:
				default:
					f.falseAlarms++
					t.Logf("false alarm of figure %d of model %d at %d: %+v", figure, i, n, c)
				}
			})
		}
	}
	f.perAnswer = time.Since(clock) / time.Duration(models*(warm+perDay))
	for _, at := range foundAt[:shifted] {
		switch {
		case at == 0:
		case at <= 500:
			f.found++
		default:
			f.late++
		}
	}
	for _, m := range fleet {
		f.bytes += int(unsafe.Sizeof(*m)) + len(m.Figures)*int(unsafe.Sizeof(m.Figures[0]))
	}
	return f
}

func (f *fleetFigures) check(t *testing.T, models, shifted int) {
	t.Helper()
	t.Logf("%d of %d shifted models found within 500 events, %d later; %d false alarms in a day; %.1f MB; %v an answer with 6 figures, random numbers included",
		f.found, shifted, f.late, f.falseAlarms, float64(f.bytes)/1e6, f.perAnswer)
	if f.found*100 < shifted*95 {
		t.Errorf("%d of %d shifted models were found within 500 events, 95 %% must be", f.found, shifted)
	}
	if f.falseAlarms > 5 {
		t.Errorf("%d false alarms, at most 5 may be", f.falseAlarms)
	}
	if f.bytes > models*2048 {
		t.Errorf("%d models take %d bytes, each may have 2 KB", models, f.bytes)
	}
}

func TestAFleetIsWatched(t *testing.T) {
	t.Parallel()
	f := simulate(t, 1000, 200, 1500)
	f.check(t, 1000, 200)
}

// The state of a model that has been saved and read again after any answer goes on to the bit as if it had not been.
func TestSavedStateGoesOn(t *testing.T) {
	w, v := NewWatch(200, 5), NewWatch(200, 5)
	a, b := NewModel(MaxInputs), NewModel(MaxInputs)
	am, bm := newMill(7), newMill(7)
	var as, bs []Change
	for n := range 2500 {
		if n == 1200 {
			am.shift(0)
			bm.shift(0)
		}
		at := time.Unix(int64(n)*60, 0)
		am.answer(w, a, uint64(n), at, func(_ int, c Change, _ Turn) { as = append(as, c) })
		bm.answer(v, b, uint64(n), at, func(_ int, c Change, _ Turn) { bs = append(bs, c) })
		state, err := b.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(state) > 2048 {
			t.Fatalf("a state has %d bytes, at most 2 KB are promised", len(state))
		}
		b = new(Model)
		if err := b.UnmarshalBinary(state); err != nil {
			t.Fatal(err)
		}
	}
	if len(as) == 0 || !reflect.DeepEqual(as, bs) || !reflect.DeepEqual(a, b) {
		t.Errorf("without a save %v, with saves %v", as, bs)
	}
}

func TestBrokenStateIsRefused(t *testing.T) {
	state, err := NewModel(1).AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := range state {
		if new(Model).UnmarshalBinary(state[:n]) == nil {
			t.Fatalf("%d bytes of %d were read", n, len(state))
		}
	}
}

// A figure is reported once while it has drifted, and again if it drifts after it has returned.
func TestADriftIsReportedOnceUntilItReturns(t *testing.T) {
	w, f, r := NewWatch(500, 5), new(Figure), rand.New(rand.NewPCG(1, 2))
	var turns []Turn
	day := func(share float64) {
		for range 3000 {
			if f.AddYes(r.Float64() < share, uint64(f.Seen), w.Reference) {
				if c, turn := w.Look(f, time.Unix(int64(f.Seen), 0)); turn != Same {
					turns = append(turns, turn)
					if turn == Drifts && (c.Since < uint64(f.Seen)-uint64(c.Values) || c.Now < c.Before) {
						t.Errorf("the change is %+v after %d values", c, f.Seen)
					}
				}
			}
		}
	}
	for _, share := range []float64{0.1, 0.4, 0.1, 0.4} {
		day(share)
	}
	if want := []Turn{Drifts, Returned, Drifts}; !reflect.DeepEqual(turns, want) || f.Alarms != 2 {
		t.Errorf("the turns are %v and %d alarms, want %v", turns, f.Alarms, want)
	}
}

// A new champion begins with a new reference; the answers of a canary, and late ones of the version before, do not.
func TestANewChampionBeginsAgain(t *testing.T) {
	m := &Model{Version: 3, Figures: NewModel(0).Figures}
	say := func(version uint32) bool {
		counts := m.Answered(version)
		if counts {
			m.Figures[Label].AddText("a", 1, 500)
		}
		return counts
	}
	for range 100 {
		if say(4) && m.Version == 3 || !say(3) {
			t.Fatal("an answer of a canary counts, or one of the champion does not")
		}
	}
	if m.Figures[Label].Seen != 100 {
		t.Fatalf("%d answers count", m.Figures[Label].Seen)
	}
	for n := 1; n < steady; n++ {
		if say(4) {
			t.Fatalf("the answer %d of the new version counts", n)
		}
	}
	if !say(4) || m.Version != 4 || m.Figures[Label].Seen != 1 {
		t.Errorf("the champion is %d, with %d answers", m.Version, m.Figures[Label].Seen)
	}
}

// A version that becomes the champion again does not count its alarms from one, because the id of a report has their number.
func TestAlarmsAreCountedOverChampions(t *testing.T) {
	m := &Model{Version: 3, Figures: NewModel(0).Figures}
	m.Figures[Label] = Figure{Kind: Shares, Drifted: true, Alarms: 2, Seen: 700}
	for range steady {
		m.Answered(4)
	}
	if want := (Figure{Alarms: 2}); m.Version != 4 || m.Figures[Label] != want {
		t.Errorf("version %d begins with %+v", m.Version, m.Figures[Label])
	}
}

// A model that answers all events of a stream may have more values than its counter can count. They do not become its reference.
func TestAFigureWithManyValues(t *testing.T) {
	w := NewWatch(100, 5)
	for _, add := range []func(f *Figure) bool{
		func(f *Figure) bool { return f.AddYes(true, 1, w.Reference) },
		func(f *Figure) bool { return f.AddNumber(float64(f.Seen%97), 1, w.Reference) },
	} {
		f := new(Figure)
		for range first + w.Reference + blocks*block {
			add(f)
		}
		f.Seen += math.MaxUint32/(blocks*block)*(blocks*block) - 4*blocks*block
		before := f.Reference
		for range 8 * blocks * block {
			if full := add(f); f.Reference != before {
				t.Fatalf("the reference is %v, and was %v, after %d values", f.Reference, before, f.Seen)
			} else if full {
				if c, turn := w.Look(f, time.Unix(0, 0)); turn != Same || !c.Calm {
					t.Fatalf("it finds %+v after %d values", c, f.Seen)
				}
			}
		}
	}
}

// The threshold is looks a day divided by the budget, also after a quiet day and after a rush.
func TestTheBudgetFollowsTheLooks(t *testing.T) {
	var b Budget
	at := time.Unix(0, 0)
	for _, c := range []struct {
		every time.Duration
		want  float64
	}{{100 * time.Millisecond, 864_000}, {time.Second, 86_400}, {time.Hour, fewestLooks}} {
		var is float64
		for end := at.Add(8 * 24 * time.Hour); at.Before(end); at = at.Add(c.every) {
			is = b.Threshold(at, 5)
		}
		if math.Abs(is*5/c.want-1) > 0.02 {
			t.Errorf("a look every %v: the threshold is %v, want %v", c.every, is, c.want/5)
		}
	}
}

func BenchmarkAnswer(b *testing.B) {
	w, m := NewWatch(500, 5), NewModel(2)
	at := time.Unix(0, 0)
	b.ReportAllocs()
	for i := range b.N {
		for f := range m.Figures {
			full := false
			switch f {
			case Label:
				full = m.Figures[f].AddText("refund", uint64(i), 500)
			case Score, inputs:
				full = m.Figures[f].AddNumber(float64(i%97), uint64(i), 500)
			default:
				full = m.Figures[f].AddYes(i%7 == 0, uint64(i), 500)
			}
			if full {
				w.Look(&m.Figures[f], at)
			}
		}
	}
}
