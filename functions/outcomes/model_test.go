package outcomes

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// logged is an event on a log of the model.
type logged struct {
	position
	ms   int64
	view broker.View
}

// history is an owner that is killed now and then, on logs in memory.
type history struct {
	testing.TB
	r       *rand.Rand
	names   tidemill.Names
	wait    int64
	missing string
	field   bool   // whether all answers and labels have the same match value
	truth   string // place of the truth in a label; empty means data.truth
	dir     string
	now     int64
	until   int64 // time up to which everything has expired
	inputs  int   // number of the newest answered input

	logs [2][]*logged // of the answers and of the labels, each in the order of time
	next [2][]int64   // next offset of each partition

	// committed state
	read, done [2]int // number of events that were read, and that have expired
	outcomes   []broker.View
	letters    []broker.View

	x       *index
	j       *joiner
	sealed  [2]int // events that the index on disk holds
	outSeal int

	at, gone [2]int // uncommitted read and done
}

const (
	ofAnswers = 0
	ofLabels  = 1
)

func (h *history) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// open opens an owner, with the files of the former one, or without them.
func (h *history) open() {
	var err error
	if h.r.IntN(3) == 0 {
		h.dir = h.TempDir()
	}
	h.x, err = openIndex(h.dir, "", 5)
	h.must(err)
	c := scorer(time.Duration(h.wait)*time.Millisecond, h.missing)
	if h.field {
		c.Labels.ID, c.Labels.Field, c.Labels.LabelField = "", "data.card", "source"
	}
	c.Labels.Truth = cmp.Or(h.truth, c.Labels.Truth)
	m := newMatcher(h.names, &c)
	out := &output{names: h.names, match: m, answers: streamAnswers, labels: streamLabels, now: func() time.Time { return time.UnixMilli(h.now) }}
	h.j = &joiner{match: m, index: h.x, out: out, wait: h.wait, missing: h.missing, torn: map[string][]written{}, forgotten: func(string, position) (bool, error) { return false, nil },
		forgets: func() int64 { return h.until - keepFor*h.wait }}
	if h.x.isEmpty() {
		h.sealed, h.outSeal = [2]int{}, 0
	}
	h.at, h.gone, h.until = h.read, h.done, 0
	h.j.replaying = true
	for _, e := range h.logs[ofAnswers][h.sealed[ofAnswers]:h.read[ofAnswers]] {
		h.must(h.j.answer(&e.view, e.position, e.ms))
	}
	for i := h.outSeal; i < len(h.outcomes); i++ {
		h.must(h.j.outcome(&h.outcomes[i], false))
	}
	h.j.lettered = map[position]bool{}
	h.j.replayed, h.j.expired = h.labelsTo(h.read[ofLabels]), h.labelsTo(h.done[ofLabels])
	for i := range h.letters {
		var d broker.DeadLetter
		h.must(json.Unmarshal(h.letters[i].Data, &d))
		h.j.lettered[position{d.Partition, d.Offset}] = true
	}
	for _, e := range h.logs[ofLabels][h.sealed[ofLabels]:h.read[ofLabels]] {
		h.must(h.j.label(&e.view, e.position, e.ms))
	}
	h.j.replaying = false
	if out.size() > 0 {
		h.Fatal("a replay has written something")
	}
}

// labelsTo returns the offsets after the first n labels.
func (h *history) labelsTo(n int) []int64 {
	offsets := make([]int64, len(h.next[ofLabels]))
	for _, e := range h.logs[ofLabels][:n] {
		offsets[e.partition] = e.offset + 1
	}
	return offsets
}

func (h *history) kill() {
	h.x.closeFiles()
	h.open()
}

// append publishes an event.
func (h *history) append(log int, v broker.View) {
	if h.field && log == ofAnswers { // the labels' value is their source
		v.Extensions = append(v.Extensions, broker.Attribute{Name: tidemill.AttrLabelField, Value: "/bank"})
	}
	partition := int32(broker.PartitionOf([]byte(v.Subject), len(h.next[log])))
	h.logs[log] = append(h.logs[log], &logged{position{partition, h.next[log][partition]}, h.now, v})
	h.next[log][partition]++
}

// take reads the next events of a log.
func (h *history) take(log, n int) {
	for ; n > 0 && h.at[log] < len(h.logs[log]); n-- {
		e := h.logs[log][h.at[log]]
		h.at[log]++
		if log == ofAnswers {
			h.must(h.j.answer(&e.view, e.position, e.ms))
		} else {
			h.must(h.j.label(&e.view, e.position, e.ms))
		}
	}
}

// expire lets expire what may: all events before a time have been read in both logs.
func (h *history) expire() {
	until := h.now
	for log := range h.logs {
		if h.at[log] < len(h.logs[log]) {
			until = min(until, h.logs[log][h.at[log]].ms)
		}
	}
	for log := range h.logs {
		for h.gone[log] < h.at[log] {
			e := h.logs[log][h.gone[log]]
			if e.ms+h.wait >= until {
				break
			}
			h.gone[log]++
			if log == ofAnswers {
				h.must(h.j.expireAnswer(&e.view, e.position, e.ms))
			} else {
				h.must(h.j.expireLabel(&e.view, e.position, e.ms))
			}
		}
	}
	h.until = until
}

func (h *history) commit() {
	h.outcomes, h.letters = append(h.outcomes, h.j.out.outcomes...), append(h.letters, h.j.out.letters...)
	h.j.out.outcomes, h.j.out.letters = nil, nil
	h.read, h.done = h.at, h.gone
	if h.x.isFull() {
		h.must(h.x.seal("", places{Answers: []int64{1}}))
		h.sealed, h.outSeal = h.read, len(h.outcomes)
		h.must(h.x.drop(h.until-keepFor*h.wait, ""))
	}
}

// step does one thing that can happen.
func (h *history) step() {
	h.now += h.r.Int64N(4)
	if h.r.IntN(20) == 0 {
		h.now += h.wait / 2
	}
	key := "k" + strconv.Itoa(h.r.IntN(4))
	n := max(0, h.inputs+h.r.IntN(16)-11) // so that labels are early, double, contradicting, late and for nothing
	switch h.r.IntN(12) {
	case 0, 1:
		if h.inputs++; h.r.IntN(10) == 0 {
			h.inputs-- // the scorer has written an answer twice
		}
		h.append(ofAnswers, answerEvent(h.names, h.inputs, key, "legit"))
	case 2, 3, 4:
		h.append(ofLabels, labelEvent(fmt.Sprintf("l%d", len(h.logs[ofLabels])), n, []string{"legit", "fraud", "other"}[h.r.IntN(3)]))
	case 5, 6:
		h.take(ofAnswers, 1+h.r.IntN(6))
	case 7, 8:
		h.take(ofLabels, 1+h.r.IntN(6))
	case 9:
		h.expire()
	case 10:
		h.commit()
	case 11:
		if h.r.IntN(3) == 0 {
			h.kill()
		}
	}
}

// finish reads everything and lets everything expire.
func (h *history) finish() {
	h.take(ofAnswers, len(h.logs[ofAnswers]))
	h.take(ofLabels, len(h.logs[ofLabels]))
	h.now += 3 * h.wait
	h.expire()
	h.commit()
}

// check compares what was written with a plain count over both logs. first is the first answer with a place.
func (h *history) check() {
	got := map[string][]tidemill.OutcomeData{}
	for i := range h.outcomes {
		var d tidemill.OutcomeData
		h.must(json.Unmarshal(h.outcomes[i].Data, &d))
		got[d.Place] = append(got[d.Place], d)
		if d.Revision != len(got[d.Place]) {
			h.Errorf("%s: revision %d comes %d.", d.Place, d.Revision, len(got[d.Place]))
		}
	}
	answers := map[string]*logged{}
	for _, e := range h.logs[ofAnswers] {
		if answers[e.view.ID] == nil {
			answers[e.view.ID] = e
		}
	}
	letters := map[string]int{}
	for i := range h.letters {
		var d struct{ OriginalID, Reason string }
		h.must(json.Unmarshal(h.letters[i].Data, &d))
		letters[d.OriginalID]++
	}
	truths := map[string][]string{}
	for _, l := range h.logs[ofLabels] {
		var d struct{ Of, Truth string }
		h.must(json.Unmarshal(l.view.Data, &d))
		place := "messages/0/" + strings.TrimPrefix(d.Of, "i-")
		a := answers[place]
		in := a != nil && a.ms-l.ms <= h.wait && l.ms-a.ms <= h.wait
		if in && (len(truths[place]) == 0 || truths[place][len(truths[place])-1] != d.Truth) {
			truths[place] = append(truths[place], d.Truth)
		}
		want := 1
		if in {
			want = 0
		}
		if letters[l.view.ID] != want {
			h.Errorf("label %s of %s has %d dead letters, want %d", l.view.ID, place, letters[l.view.ID], want)
		}
	}
	for place := range answers {
		want := truths[place]
		if len(want) == 0 && h.missing != "" {
			want = []string{h.missing}
		}
		var have []string
		for _, d := range got[place] {
			have = append(have, d.Truth)
		}
		if !slices.Equal(have, want) {
			h.Errorf("%s: truths %q, want %q", place, have, want)
		}
	}
	if len(got) > len(answers) {
		h.Errorf("%d outcomes for %d answers", len(got), len(answers))
	}
}

// Answers of a value that has too many of them get their label when their wait is over, also after the index was lost. When
// the older answers are forgotten, the value has room again.
func TestAValueWithManyAnswers(t *testing.T) {
	t.Parallel()
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	h := &history{TB: t, r: rand.New(rand.NewPCG(1, 1)), names: names, wait: 60, field: true, now: 1_700_000_000_000, dir: t.TempDir(),
		next: [2][]int64{make([]int64, 3), make([]int64, 2)}}
	const answers = mostMembers + 50
	h.open()
	outcomes := func(want int, when string) {
		t.Helper()
		h.commit()
		if truths := h.truths(); len(truths) != want || len(h.outcomes) != want || slices.ContainsFunc(slices.Collect(maps.Values(truths)), func(truth string) bool { return truth != "fraud" }) {
			t.Fatalf("%s: %d outcomes of %d answers, want %d, all of them fraud: %v", when, len(h.outcomes), len(truths), want, truths)
		}
	}
	for n := range answers {
		h.append(ofAnswers, answerEvent(names, n, "k", "legit"))
	}
	h.append(ofLabels, labelEvent("l", 0, "fraud"))
	h.take(ofAnswers, answers)
	h.take(ofLabels, 1)
	outcomes(mostMembers, "at first")
	h.dir = t.TempDir() // the next owner has only the logs
	h.kill()
	h.now += h.wait + 1
	h.expire()
	outcomes(answers, "after the wait")
	h.now += 3 * h.wait
	h.expire()
	h.append(ofAnswers, answerEvent(names, answers, "k", "legit"))
	h.append(ofLabels, labelEvent("m", answers, "fraud"))
	h.take(ofAnswers, 1)
	h.take(ofLabels, 1)
	outcomes(answers+1, "later")
	h.x.closeFiles()
}

// An answer without the field of the match value gets the assumed truth, and not that of a label of another answer.
func TestAnAnswerWithoutAMatchValue(t *testing.T) {
	t.Parallel()
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	h := &history{TB: t, r: rand.New(rand.NewPCG(1, 1)), names: names, wait: 60, field: true, missing: "legit", now: 1_700_000_000_000, dir: t.TempDir(),
		next: [2][]int64{make([]int64, 3), make([]int64, 2)}}
	h.open()
	h.append(ofAnswers, answerEvent(names, 0, "k", "legit"))
	h.append(ofAnswers, answerEvent(names, 1, "k", "legit"))
	without := &h.logs[ofAnswers][1].view
	without.Extensions = without.Extensions[:len(without.Extensions)-1]
	h.append(ofLabels, labelEvent("l", 0, "fraud"))
	h.finish()
	if truths := h.truths(); truths["messages/0/0"] != "fraud" || truths["messages/0/1"] != "legit" {
		t.Errorf("the truths are %v", truths)
	}
	h.x.closeFiles()
}

// A label is in time only for an answer beyond those that an entry has room for. It gets an outcome and no dead letter.
func TestALabelOfAnAnswerWithoutRoom(t *testing.T) {
	t.Parallel()
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	h := &history{TB: t, r: rand.New(rand.NewPCG(1, 1)), names: names, wait: 60, field: true, now: 1_700_000_000_000, dir: t.TempDir(),
		next: [2][]int64{make([]int64, 3), make([]int64, 2)}}
	h.open()
	for n := range mostMembers + 1 {
		if n == mostMembers {
			h.now += 50
		}
		h.append(ofAnswers, answerEvent(names, n, "k", "legit"))
	}
	h.now += 20
	h.append(ofLabels, labelEvent("l", 0, "fraud"))
	h.finish()
	if truths := h.truths(); len(h.letters) != 0 || len(truths) != 1 || truths["messages/0/"+strconv.Itoa(mostMembers)] != "fraud" {
		t.Errorf("the truths are %v, the dead letters %s", truths, h.letters)
	}
	h.x.closeFiles()
}

// A label is too late for an answer, and in time for the next one of its value. It becomes a dead letter only if no answer follows.
func TestALabelBetweenTwoAnswersOfAValue(t *testing.T) {
	t.Parallel()
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	h := &history{TB: t, names: names, r: rand.New(rand.NewPCG(1, 1)), wait: 60, field: true, now: 1_700_000_000_000, dir: t.TempDir(), next: [2][]int64{make([]int64, 3), make([]int64, 2)}}
	h.open()
	defer func() { h.x.closeFiles() }()
	h.append(ofAnswers, answerEvent(names, 0, "k", "legit"))
	h.take(ofAnswers, 1)
	h.now += h.wait + 1
	h.append(ofLabels, labelEvent("between", 1, "fraud"))
	h.take(ofLabels, 1)
	h.commit()
	h.kill()
	h.now += h.wait / 2
	h.append(ofAnswers, answerEvent(names, 1, "k", "legit"))
	h.take(ofAnswers, 1)
	h.commit()
	if truths := h.truths(); len(truths) != 1 || truths["messages/0/1"] != "fraud" {
		t.Errorf("the truths are %v", truths)
	}
	h.now += 2 * h.wait
	h.append(ofLabels, labelEvent("late", 1, "fraud"))
	h.take(ofLabels, 1)
	h.now += 3 * h.wait
	h.expire()
	h.commit()
	if len(h.letters) != 1 || !strings.Contains(string(h.letters[0].Data), `"originalId":"late"`) || !strings.Contains(string(h.letters[0].Data), "too late") {
		t.Errorf("%d dead letters: %s", len(h.letters), h.letters)
	}
}

// A label waits for an answer whose key was forgotten before the answer was read. Its dead letter says so, and has no data.
func TestAnEarlyLabelOfAForgottenKey(t *testing.T) {
	t.Parallel()
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	h := &history{TB: t, names: names, r: rand.New(rand.NewPCG(1, 1)), wait: 60, now: 1_700_000_000_000, dir: t.TempDir(), next: [2][]int64{make([]int64, 3), make([]int64, 2)}}
	h.open()
	defer h.x.closeFiles()
	h.j.forgotten = func(key string, _ position) (bool, error) { return key == "gone", nil }
	for n, key := range []string{"gone", "here"} {
		h.append(ofLabels, labelEvent("of "+key, n, "fraud"))
		h.append(ofAnswers, answerEvent(names, n, key, "legit"))
	}
	h.take(ofLabels, 2)
	h.take(ofAnswers, 2)
	h.now += 3 * h.wait
	h.expire()
	h.commit()
	if truths := h.truths(); len(truths) != 1 || truths["messages/0/1"] != "fraud" {
		t.Errorf("the truths are %v", truths)
	}
	if len(h.letters) != 1 {
		t.Fatalf("%d dead letters", len(h.letters))
	}
	var d struct {
		OriginalID, Reason string
		Record             broker.DeadRecord
	}
	h.must(json.Unmarshal(h.letters[0].Data, &d))
	if d.OriginalID != "of gone" || !strings.Contains(d.Reason, "forgotten") || len(d.Record.Value) > 0 {
		t.Errorf("the dead letter is %+v", d)
	}
}

// Labels of a value wait for an answer that never comes, and there are too many of them. Each has one dead letter, also if the
// owner was killed while they waited, or the index was lost.
func TestTooManyLabelsOfAValue(t *testing.T) {
	t.Parallel()
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{"none", "killed", "index lost"} {
		h := &history{TB: t, names: names, r: rand.New(rand.NewPCG(1, 1)), wait: 60, now: 1_700_000_000_000, dir: t.TempDir(), next: [2][]int64{make([]int64, 3), make([]int64, 2)}}
		h.open()
		send := func(from, n int) {
			for i := range n {
				h.append(ofLabels, labelEvent(fmt.Sprint("l", from+i), 0, "fraud"))
			}
			h.take(ofLabels, n)
		}
		send(0, mostMembers/2)
		h.now += h.wait / 2
		send(mostMembers/2, mostMembers)
		h.commit()
		if len(h.letters) != mostMembers/2 {
			t.Errorf("at first %d dead letters", len(h.letters))
		}
		h.now += h.wait/2 + 1
		h.expire()
		send(3*mostMembers/2, mostMembers/2) // there is room again
		h.commit()
		if end == "index lost" {
			h.dir = t.TempDir()
		}
		if end != "none" {
			h.kill()
		}
		h.finish()
		letters := map[string]int{}
		for i := range h.letters {
			var d struct{ OriginalID string }
			h.must(json.Unmarshal(h.letters[i].Data, &d))
			letters[d.OriginalID]++
		}
		for i := range 2 * mostMembers {
			if n := letters[fmt.Sprint("l", i)]; n != 1 {
				t.Errorf("end of the owner: %s: label %d has %d dead letters", end, i, n)
			}
		}
		h.x.closeFiles()
	}
}

// The place of the truth is changed while labels wait. A label that has nothing there becomes a dead letter.
func TestAChangedPlaceOfTheTruth(t *testing.T) {
	t.Parallel()
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	h := &history{TB: t, names: names, r: rand.New(rand.NewPCG(1, 1)), wait: 60, now: 1_700_000_000_000, dir: t.TempDir(), next: [2][]int64{make([]int64, 3), make([]int64, 2)}}
	h.open()
	for n := range 3 {
		h.append(ofLabels, labelEvent(fmt.Sprint("l", n), n, "fraud"))
	}
	h.take(ofLabels, 3)
	h.commit()
	for range 2 {
		h.dir, h.truth = t.TempDir(), "data.verdict"
		h.kill()
		h.append(ofLabels, labelEvent("new", 4, "fraud"))
		h.finish()
	}
	if len(h.letters) != 5 || !strings.Contains(string(h.letters[1].Data), "no value at data.verdict") {
		t.Errorf("%d dead letters: %s", len(h.letters), h.letters)
	}
	h.x.closeFiles()
}

// The entry of a record from the future is dropped like any other.
func TestAnEntryFromTheFutureIsDropped(t *testing.T) {
	t.Parallel()
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	h := &history{TB: t, names: names, r: rand.New(rand.NewPCG(1, 1)), wait: 60, now: 1_700_000_000_000, dir: t.TempDir(), next: [2][]int64{make([]int64, 3), make([]int64, 2)}}
	h.open()
	for round := range 2 {
		for n := range 8 {
			h.append(ofLabels, labelEvent(fmt.Sprint("l", round, n), 8*round+n, "fraud"))
		}
		if round == 0 {
			h.logs[ofLabels][7].ms += 1 << 40
		}
		h.take(ofLabels, 8)
		h.until = h.now
		h.commit()
		h.now += 10 * h.wait
	}
	if n := len(h.x.segments); n != 1 {
		t.Errorf("the index has %d files", n)
	}
	h.x.closeFiles()
}

// truths returns the last truth of each answer.
func (h *history) truths() map[string]string {
	all := map[string]string{}
	for i := range h.outcomes {
		var d tidemill.OutcomeData
		h.must(json.Unmarshal(h.outcomes[i].Data, &d))
		all[d.Place] = d.Truth
	}
	return all
}

// Each answer has one outcome and the corrections that its labels ask for, and each label without an answer one dead
// letter, however labels and answers interleave, and whenever the owner is killed.
func TestOutcomesFollowFromTheLogs(t *testing.T) {
	t.Parallel()
	names, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(100) {
		h := &history{TB: t, r: rand.New(rand.NewPCG(seed, 1)), names: names, wait: 60, now: 1_700_000_000_000, dir: t.TempDir(),
			next: [2][]int64{make([]int64, 3), make([]int64, 2)}}
		if seed%2 == 0 {
			h.missing = "legit"
		}
		h.open()
		for range 400 {
			h.step()
		}
		h.finish()
		h.check()
		h.x.closeFiles()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
