package outcomes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

func TestLabelsFindTheirAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.runs(w.options(scorer(time.Hour, "")))
	w.label("early", 1, "fraud")
	w.answer(1, "k", "legit")
	w.answer(2, "k", "legit")
	w.label("after", 2, "legit")
	w.awaits("two outcomes", func() bool { return len(w.outcomes()) == 2 })
	w.label("again", 2, "legit")
	w.label("contradicts", 2, "fraud")
	w.label("unreadable", 3, "")
	v := broker.View{ID: "said", Source: w.names.Source("gateway"), Type: tidemill.TypeLabel, Subject: "k", DataContentType: "application/json",
		Data: []byte(`{"scorer":"s","id":"i-1","truth":"legit"}`), Extensions: []broker.Attribute{{Name: tidemill.AttrScorer, Value: "s"}, {Name: tidemill.AttrAuthID, Value: "ada"}}}
	_, err := w.p.Publish(t.Context(), streamLabels, &v)
	w.must(err)
	w.awaits("the corrections", func() bool { o := w.outcomes(); return len(o[place(1)]) == 2 && len(o[place(2)]) == 2 })
	w.awaits("the dead letter", func() bool { return len(w.letters()) == 1 })
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	all := w.outcomes()
	one, two := all[place(1)], all[place(2)]
	want := tidemill.OutcomeData{Scorer: "s", Key: "k", Model: "m/k", Version: 4, Place: place(1), Group: "card-1", Label: "legit", Score: 0.75,
		Truth: "fraud", Basis: tidemill.OutcomeLabelled, Revision: 1, Answered: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Labelled: time.Date(2026, 1, 3, 0, 0, 0, 0, time.UTC), LabelID: "early", LabelSource: "/bank"}
	got := one[0]
	if got.Scores["fraud"] != 0.75 || !strings.HasPrefix(got.Answer, "scored/") {
		t.Errorf("scores %v, answer %q", got.Scores, got.Answer)
	}
	got.Scores, got.Answer = nil, ""
	if !equalData(got, want) {
		t.Errorf("outcome\n%+v, want\n%+v", got, want)
	}
	if one[1].Truth != "legit" || one[1].Before != "fraud" || one[1].Basis != tidemill.OutcomeSaid || one[1].LabelID != "said" {
		t.Errorf("a person's correction: %+v", one[1])
	}
	if two[0].Truth != "legit" || two[1].Truth != "fraud" || two[1].Before != "legit" {
		t.Errorf("a contradiction: %+v", two)
	}
	if reason := w.letters()["unreadable"]; !strings.Contains(reason, "data.truth") {
		t.Errorf("dead letters: %v", w.letters())
	}
}

func equalData(a, b tidemill.OutcomeData) bool {
	a.Scores, b.Scores = nil, nil
	return a.Scorer == b.Scorer && a.Key == b.Key && a.Model == b.Model && a.Version == b.Version && a.Place == b.Place && a.Answer == b.Answer && a.Group == b.Group &&
		a.Label == b.Label && a.Score == b.Score && a.Truth == b.Truth && a.Before == b.Before && a.Basis == b.Basis && a.Revision == b.Revision &&
		a.Answered.Equal(b.Answered) && a.Labelled.Equal(b.Labelled) && a.LabelID == b.LabelID && a.LabelSource == b.LabelSource
}

// After the wait an answer without a label gets the assumed truth, and a label without an answer, or one that comes too
// late, becomes a dead letter.
func TestTheWaitEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.runs(w.options(scorer(300*time.Millisecond, "legit")))
	w.answer(1, "k", "fraud")
	w.label("for nothing", 9, "fraud")
	w.awaits("the assumed truth", func() bool { return len(w.outcomes()) == 1 })
	if d := w.outcomes()[place(1)][0]; d.Truth != "legit" || d.Basis != tidemill.OutcomeAssumed || !d.Labelled.IsZero() || d.LabelID != "" {
		t.Errorf("%+v", d)
	}
	w.label("late", 1, "fraud")
	w.awaits("two dead letters", func() bool { return len(w.letters()) == 2 })
	if l := w.letters(); !strings.Contains(l["late"], "too late") || !strings.Contains(l["for nothing"], `no answer of scorer s has an input with the id "i-9"`) {
		t.Errorf("%v", l)
	}
	if n := len(w.outcomes()[place(1)]); n != 1 {
		t.Errorf("%d outcomes", n)
	}
}

// The clock of a publisher is years ahead. Its label belongs to no answer, and the waits of the labels after it end.
func TestALabelFromTheFuture(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	client := &kafka.Client{Addr: kafka.TCP(w.kafka.Kafka())}
	for id, at := range []time.Time{time.Now().AddDate(50, 0, 0), time.Now()} {
		value := fmt.Appendf(nil, `{"specversion":"1.0","id":"l%d","source":"/bank","type":"chargeback","data":{"of":"i-9","truth":"fraud"}}`, id)
		answer, err := client.Produce(t.Context(), &kafka.ProduceRequest{Topic: w.names.Topic(streamLabels), RequiredAcks: kafka.RequireAll,
			Records: kafka.NewRecordReader(kafka.Record{Time: at, Value: kafka.NewBytes(value), Headers: []kafka.Header{{Key: "content-type", Value: []byte("application/cloudevents+json")}}})})
		w.must(err)
		w.must(answer.Error)
	}
	w.runs(w.options(scorer(300*time.Millisecond, "")))
	w.awaits("two dead letters", func() bool { return len(w.letters()) == 2 })
}

// An answer is in a transaction that ends after the wait. Its label was in time, and waits for it. After a transaction
// that is aborted, waits end as before.
func TestATransactionTakesLongerThanTheWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const wait = 2 * time.Second // the label reaches its stream within it
	w.runs(w.options(scorer(wait, "legit")))
	x, err := w.b.Exclusive(t.Context(), "slow", broker.ProducerOptions{})
	w.must(err)
	v := answerEvent(w.names, 1, "k", "legit")
	w.must(x.Do(t.Context(), func(tx *broker.ExclusiveTx) error {
		tx.SendTo(t.Context(), streamAnswers, 0, &v, nil)
		w.awaits("the answer on the log", func() bool {
			ends, err := w.b.OpenEnds(t.Context(), streamAnswers)
			w.must(err)
			return ends[0].Offset == 1
		})
		w.label("in time", 1, "fraud")
		over := time.Now().Add(2 * wait)
		w.awaits("the end of the wait", func() bool { return time.Now().After(over) })
		return nil
	}))
	w.awaits("the outcome", func() bool { return len(w.outcomes()) == 1 })
	if d := w.outcomes()[place(1)][0]; d.Truth != "fraud" || len(w.letters()) > 0 {
		t.Errorf("the truth is %q; dead letters: %v", d.Truth, w.letters())
	}
	aborted := answerEvent(w.names, 2, "k", "legit")
	err = x.Do(t.Context(), func(tx *broker.ExclusiveTx) error {
		tx.SendTo(t.Context(), streamAnswers, 1, &aborted, nil)
		w.awaits("the second answer on the log", func() bool {
			ends, err := w.b.OpenEnds(t.Context(), streamAnswers)
			w.must(err)
			return ends[1].Offset == 1
		})
		return errors.New("not now")
	})
	if !errors.Is(err, broker.ErrAborted) {
		t.Errorf("the transaction ends with %v", err)
	}
	w.label("for nothing", 2, "fraud")
	w.awaits("the dead letter of a label without an answer", func() bool { return len(w.letters()) == 1 })
	w.must(x.Close(t.Context()))
}

// Labels whose texts do not fit into one event together become dead letters, and those after them are joined.
func TestAnOutcomeThatIsTooLarge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.runs(w.options(scorer(time.Hour, "")))
	w.answer(1, "k", "legit")
	w.answer(2, "k", "legit")
	w.label("long", 1, strings.Repeat("x", 600<<10))
	w.awaits("the first outcome", func() bool { return len(w.outcomes()[place(1)]) == 1 })
	w.label("longer", 1, strings.Repeat("y", 600<<10)) // a correction has both truths
	w.label("short", 2, "fraud")
	w.awaits("the outcome after it", func() bool { return len(w.outcomes()[place(2)]) == 1 })
	w.label("last", 1, "fraud")
	w.awaits("the correction", func() bool { return len(w.outcomes()[place(1)]) == 2 })
	if o := w.outcomes()[place(1)][1]; o.Truth != "fraud" {
		t.Errorf("the truth is %.20q", o.Truth)
	}
	if l := w.letters(); len(l) != 1 || !strings.Contains(l[""], "too large") {
		t.Errorf("the dead letters are %v", l)
	}
}

// Readers accept more than publishers may write: an input has attributes with control characters, which its answer repeats.
// Its outcome is written, and so is the dead letter of a label like that.
func TestAttributesThatNobodyMayPublish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	forward, err := w.b.Producer(broker.ProducerOptions{AsRead: true})
	w.must(err)
	defer func() { w.must(forward.Close(context.Background())) }()
	w.runs(w.options(scorer(3*time.Second, "")))
	odd := answerEvent(w.names, 1, "two\nlines", "legit")
	label := labelEvent("l\x01", 1, "fraud")
	lost := labelEvent("lost\x01", 7, "fraud")
	for stream, v := range map[string]*broker.View{streamAnswers: &odd, streamLabels: &label} {
		_, err := forward.Publish(t.Context(), stream, v)
		w.must(err)
	}
	_, err = forward.Publish(t.Context(), streamLabels, &lost)
	w.must(err)
	w.awaits("the outcome", func() bool { return len(w.outcomes()[place(1)]) == 1 })
	w.awaits("the dead letter", func() bool { return len(w.letters()) == 1 })
	if d := w.outcomes()[place(1)][0]; d.Truth != "fraud" || d.Key != "two\nlines" || d.LabelID != "l\x01" {
		t.Errorf("%+v", d)
	}
}

// Another client of Kafka wrote an unreadable outcome in the name of the scorer. The next owner skips it.
func TestAnOutcomeWithoutARevision(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	odd := broker.View{ID: "odd", Source: w.names.Source("outcomes/s"), Type: tidemill.TypeOutcome, DataContentType: "application/json", Data: []byte(`{"revision":"first"}`)}
	_, err := w.p.Publish(t.Context(), tidemill.StreamOutcomes, &odd)
	w.must(err)
	w.runs(w.options(scorer(time.Hour, "")))
	w.answer(1, "k", "legit")
	w.label("a", 1, "fraud")
	w.awaits("the outcome", func() (found bool) {
		w.each(tidemill.StreamOutcomes, func(e *broker.Incoming) { found = found || strings.HasPrefix(e.ID, place(1)) })
		return found
	})
}

// A batch ends when the memory for entries is full, so that the memory does not grow with a backlog of large labels.
func TestABatchEndsWhenTheIndexIsFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const labels = 1000
	for n := range labels {
		v := labelEvent("l"+strconv.Itoa(n), n, strings.Repeat("x", 16<<10))
		w.p.Send(t.Context(), streamLabels, &v, func(_ broker.Receipt, err error) { w.must(err) })
	}
	w.must(w.p.Flush(t.Context()))
	o := w.options(scorer(time.Hour, ""))
	o.most = 10
	s, err := open(t.Context(), o)
	w.must(err)
	defer func() { w.must(s.close(context.Background())) }()
	read := 0
	for times := 0; read < labels; times++ {
		w.must(s.gather(t.Context(), patience))
		n := len(s.index.table.at)
		if read += n; n == 0 || n > labels/5 {
			t.Fatalf("batch %d has %d labels of %d", times, n, labels)
		}
		w.must(s.commit(t.Context(), false))
		if s.index.isFull() {
			t.Fatalf("batch %d leaves a full index", times)
		}
	}
}

// A transaction is bounded by bytes, also if the labels of many large answers are in one delivery, or if their waits end together.
func TestATransactionIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]config.Scorer{"labels": scorer(time.Hour, ""), "waits": scorer(time.Millisecond, "legit")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			o := w.options(c)
			s, err := open(t.Context(), o)
			w.must(err)
			defer func() { w.must(s.close(context.Background())) }()
			const answers = 18
			publish := func(stream string, event func(n int) broker.View) {
				for n := range answers {
					v := event(n)
					w.p.Send(t.Context(), stream, &v, func(_ broker.Receipt, err error) { w.must(err) })
				}
				w.must(w.p.Flush(t.Context()))
			}
			publish(streamAnswers, func(n int) broker.View {
				v := answerEvent(w.names, n, "k", "legit")
				v.Data = fmt.Appendf(nil, `{"label":"legit","text":%q}`, strings.Repeat("x", 900<<10))
				return v
			})
			for s.join.n.answers < answers {
				w.must(s.gather(t.Context(), patience))
			}
			if c.Labels.Missing == "" {
				publish(streamLabels, func(n int) broker.View {
					v := labelEvent("l"+strconv.Itoa(n), n, "fraud")
					v.Subject = "k" // so that one partition, and one delivery, has all
					return v
				})
			}
			for again, found := true, 0; found < answers; {
				w.must(s.gather(t.Context(), 10*time.Millisecond))
				w.must(s.expire(t.Context(), time.Now()))
				if s.out.bytes > mostBytes+mostSent {
					t.Fatalf("a transaction has %d bytes", s.out.bytes)
				}
				found += len(s.out.outcomes)
				w.must(s.commit(t.Context(), false))
				if again && found > 0 { // the next owner continues within the delivery
					again = false
					w.must(s.close(t.Context()))
					s, err = open(t.Context(), o)
					w.must(err)
				}
			}
			if n := len(w.outcomes()); n != answers {
				t.Errorf("%d outcomes, want %d", n, answers)
			}
		})
	}
}

// The config names another stream of labels, or of answers, that has had events for long. Like a scorer's first owner, the
// next one begins there a wait ago: old labels become no dead letters, and old answers get no assumed truth.
func TestAnotherStreamBeginsAWaitAgo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const wait = 300 * time.Millisecond
	c := scorer(wait, "legit")
	stop := w.runs(w.options(c))
	w.answer(1, "k", "legit")
	w.awaits("the first outcome", func() bool { return len(w.outcomes()) == 1 })
	_ = stop()

	_, err := w.b.EnsureStreams(t.Context(), []broker.StreamSpec{{Name: "answers-before", Partitions: 1}, {Name: "labels-before", Partitions: 1}}, broker.EnsureOptions{})
	w.must(err)
	old, label := answerEvent(w.names, 2, "k", "legit"), labelEvent("old", 3, "fraud")
	_, err = w.p.Publish(t.Context(), "answers-before", &old)
	w.must(err)
	_, err = w.p.Publish(t.Context(), "labels-before", &label)
	w.must(err)
	over := time.Now().Add(2 * wait)
	w.awaits("the end of the wait", func() bool { return time.Now().After(over) })

	c.To, c.Labels.From = "answers-before", "labels-before"
	w.runs(w.options(c))
	young := answerEvent(w.names, 4, "k", "legit")
	_, err = w.p.Publish(t.Context(), "answers-before", &young)
	w.must(err)
	w.awaits("the outcome of a new answer", func() bool { return len(w.outcomes()[place(4)]) == 1 })
	if o, l := w.outcomes(), w.letters(); len(o) != 2 || len(l) > 0 {
		t.Errorf("%d outcomes, want 2; dead letters: %v", len(o), l)
	}
}

// A label waits on a stream that the config no longer names. The log says that it gets nothing, as long as it would wait.
func TestALabelIsLeftOnTheFormerStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.b.EnsureStreams(t.Context(), []broker.StreamSpec{{Name: "new-verdicts", Partitions: 1}}, broker.EnsureOptions{})
	w.must(err)
	w.label("early", 1, "fraud")
	wait, from := time.Hour, streamLabels
	opens := func(warnings int) {
		t.Helper()
		var log bytes.Buffer
		c := scorer(wait, "")
		c.Labels.From = from
		o := w.options(c)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		s, err := open(t.Context(), o)
		w.must(err)
		if from == streamLabels {
			w.awaits("the label to be read", func() bool {
				w.must(s.gather(t.Context(), patience))
				s.moveRead()
				return slices.Max(s.labels.read) == 1
			})
		}
		w.must(s.commit(t.Context(), true))
		w.must(s.close(t.Context()))
		if n := strings.Count(log.String(), "no longer names a stream"); n != warnings || n > 0 && !strings.Contains(log.String(), "stream="+streamLabels) {
			t.Errorf("%d warnings, want %d: %s", n, warnings, log.String())
		}
	}
	opens(0)
	from = "new-verdicts"
	opens(1)
	wait = time.Nanosecond
	opens(0)
}

// An owner that is killed at any step leaves nothing out and nothing twice.
func TestAKillAtEachStep(t *testing.T) {
	t.Parallel()
	const events = 40
	for _, keep := range []bool{true, false} {
		w := newWorld(t)
		end := w.runsAndIsKilled(w.options(scorer(time.Hour, "")), keep)
		for n := range events {
			if n%3 == 0 {
				w.label("early", n, "fraud")
			}
			w.answer(n, "k", "legit")
			if n%3 == 1 {
				w.label("after", n, "legit")
				w.label("twice", n, "legit")
			}
			if n%2 == 0 {
				w.label("contradicts", n, "other")
			}
		}
		wanted := 0
		for n := range events {
			if n%3 < 2 {
				wanted++
			}
			if n%2 == 0 {
				wanted++
			}
		}
		w.awaits("all outcomes", func() bool {
			n := 0
			for _, d := range w.outcomes() {
				n += len(d)
			}
			if n > wanted {
				t.Fatalf("%d outcomes, want %d", n, wanted)
			}
			return n == wanted
		})
		end()
		for n := range events {
			d := w.outcomes()[place(n)]
			last := ""
			if len(d) > 0 {
				last = d[len(d)-1].Truth
			}
			want := [3]string{"fraud", "legit", ""}[n%3]
			if n%2 == 0 {
				want = "other"
			}
			if last != want {
				t.Errorf("input %d: truth %q, want %q", n, last, want)
			}
		}
	}
}

// An owner that is killed at any step while waits end leaves each answer with one outcome, and each label that is late or for
// nothing with one dead letter.
func TestAKillWhileWaitsEnd(t *testing.T) {
	t.Parallel()
	const events = 30
	for _, keep := range []bool{true, false} {
		w := newWorld(t)
		o := w.options(scorer(200*time.Millisecond, "legit"))
		end := w.runsAndIsKilled(o, keep)
		for n := range events {
			w.answer(n, "k", "fraud")
			w.label(fmt.Sprint("for nothing ", n), 1000+n, "fraud")
		}
		w.awaits("the assumed truths", func() bool { return len(w.outcomes()) == events })
		end()
		end = w.runsAndIsKilled(o, keep)
		for n := range events {
			w.label(fmt.Sprint("late ", n), n, "fraud")
		}
		w.awaits("the dead letters", func() bool { return len(w.letters()) == 2*events })
		end()
		for place, d := range w.outcomes() {
			if len(d) != 1 || d[0].Truth != "legit" || d[0].Basis != tidemill.OutcomeAssumed {
				t.Errorf("%s: %+v", place, d)
			}
		}
		letters := 0
		w.each(tidemill.StreamDeadLetters, func(*broker.Incoming) { letters++ })
		if letters != 2*events {
			t.Errorf("%d dead letters, want %d", letters, 2*events)
		}
	}
}

// runsAndIsKilled runs owners one after the other, each of which is killed at its fifth step, sixty times. The next one
// has the files of the former one, or not.
func (w *world) runsAndIsKilled(o Options, keep bool) (end func()) {
	o.most = 7
	steps, kills := 0, 0
	o.crash = func(string) error {
		if steps++; steps%5 == 0 && kills < 60 {
			kills++
			return errCrash
		}
		return nil
	}
	ctx, cancel := context.WithCancel(w.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			if !keep {
				o.Dir = ""
			}
			if err := Run(ctx, o); ctx.Err() == nil && !errors.Is(err, errCrash) {
				w.Error(err)
				return
			}
		}
	}()
	w.begins(o.Config)
	return func() {
		cancel()
		<-stopped
	}
}

// The outcomes of other scorers are no lag of this one's group.
func TestOutcomesOfOthersAreNoLag(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, err := open(t.Context(), w.options(scorer(time.Hour, "")))
	w.must(err)
	defer func() { w.must(s.close(t.Context())) }()
	for n := range 10 {
		v := broker.View{ID: place(n), Source: w.names.Source("outcomes/another"), Type: tidemill.TypeOutcome, Subject: fmt.Sprint("k", n)}
		_, err := w.p.Publish(t.Context(), tidemill.StreamOutcomes, &v)
		w.must(err)
	}
	w.must(s.commit(t.Context(), true))
	ends, err := w.b.Ends(t.Context(), tidemill.StreamOutcomes)
	w.must(err)
	marked, err := w.b.Committed(t.Context(), Group("s"), ends)
	w.must(err)
	for i := range ends {
		if marked[i].Offset != ends[i].Offset {
			t.Errorf("the group is at %v, want %v", marked, ends)
		}
	}
}

// The newest owner wins: the former one cannot commit any more.
func TestAnotherOwnerTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.options(scorer(time.Hour, ""))
	first := w.runs(o)
	w.answer(1, "k", "legit")
	w.label("a", 1, "fraud")
	w.awaits("the first outcome", func() bool { return len(w.outcomes()) == 1 })
	other := o
	other.Dir = t.TempDir()
	w.runs(other)
	for n := 2; ; n++ { // the first owner notices it at its next transaction
		w.answer(n, "k", "legit")
		w.label("b", n, "fraud")
		w.awaits("the next outcome", func() bool { return len(w.outcomes()) == n })
		if n == 20 {
			break
		}
	}
	if err := first(); !errors.Is(err, broker.ErrSuperseded) {
		t.Errorf("the former owner ends with %v", err)
	}
}

// forgets records that a key was forgotten at the present end of the answers.
func (w *world) forgets(key string) {
	w.Helper()
	id, err := w.b.TopicID(w.Context(), streamAnswers)
	w.must(err)
	ends, err := w.b.Ends(w.Context(), streamAnswers)
	w.must(err)
	d := tidemill.KeyPassedData{Ends: map[string][]int64{}, Topics: map[string]string{streamAnswers: id}}
	for _, p := range ends {
		d.Ends[streamAnswers] = append(d.Ends[streamAnswers], p.Offset)
	}
	data, err := json.Marshal(d)
	w.must(err)
	v := broker.View{ID: "p" + id, Source: w.names.Source("forget"), Type: tidemill.TypeKeyPassed, Subject: key, DataContentType: "application/json", Data: data}
	_, err = w.p.Publish(w.Context(), tidemill.StreamCommands, &v)
	w.must(err)
}

// The stream of answers was created again after a key was forgotten. Answers of the key in the new stream get outcomes.
func TestAForgottenKeyInANewStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for n := range 5 {
		w.answer(n, "k", "fraud")
	}
	w.forgets("k")
	w.recreateAnswers()
	w.runs(w.options(scorer(500*time.Millisecond, "legit")))
	w.answer(7, "k", "fraud")
	w.awaits("the outcome of the new answer", func() bool { return len(w.outcomes()[place(7)]) == 1 })
}

// recreateAnswers deletes the stream of answers and creates it again.
func (w *world) recreateAnswers() {
	w.Helper()
	client := &kafka.Client{Addr: kafka.TCP(w.kafka.Kafka())}
	_, err := client.DeleteTopics(w.Context(), &kafka.DeleteTopicsRequest{Topics: []string{w.names.Topic(streamAnswers)}})
	w.must(err)
	_, err = w.b.EnsureStreams(w.Context(), []broker.StreamSpec{{Name: streamAnswers, Partitions: 3}}, broker.EnsureOptions{})
	w.must(err)
}

// The stream of answers is created again while its owner runs. A key that is forgotten then gets the outcomes of its later
// answers only.
func TestAKeyIsForgottenInANewStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.runs(w.options(scorer(time.Hour, "")))
	for n := range 6 {
		w.answer(n, "k", "fraud")
	}
	w.label("old", 5, "fraud")
	w.awaits("the outcome of the old stream", func() bool { return len(w.outcomes()) == 1 })
	w.recreateAnswers()
	w.awaits("the owner to see the new stream", func() bool { return len(w.letters()) > 0 })
	w.answer(7, "k", "fraud")
	w.forgets("k")
	w.answer(8, "k", "fraud")
	w.label("later", 8, "fraud")
	w.awaits("the outcome of the later answer", func() bool { return len(w.outcomes()[place(8)]) == 1 })
	w.label("before", 7, "secret")
	w.awaits("the dead letter of the label", func() bool { return w.letters()["before"] != "" })
	if o := w.outcomes()[place(7)]; len(o) > 0 {
		t.Errorf("an outcome of a forgotten key: %+v", o)
	}
}

// The answers of a forgotten key get no outcomes, and the dead letter of their label has no data.
func TestAForgottenKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.runs(w.options(scorer(3*time.Second, "legit"))) // the owner reads the command within it
	w.answer(1, "k", "fraud")
	w.answer(2, "other", "fraud")
	w.forgets("k")
	w.answer(3, "k", "fraud") // of the key's next life
	w.awaits("the outcomes of the others", func() bool { return len(w.outcomes()) >= 2 })
	w.awaits("the command to be followed", func() bool {
		o := w.outcomes()
		return len(o[place(2)]) == 1 && len(o[place(3)]) == 1
	})
	if o := w.outcomes(); len(o[place(1)]) != 0 {
		t.Errorf("an outcome of a forgotten key: %+v", o[place(1)])
	}
}

func TestALabelOfAForgottenKeyLosesItsData(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.options(scorer(10*time.Second, "")) // a label that is read before its answer waits so long
	w.answer(1, "k", "fraud")
	d, err := json.Marshal(tidemill.KeyPassedData{Ends: map[string][]int64{streamAnswers: {100, 100, 100}}})
	w.must(err)
	v := broker.View{ID: "p", Source: w.names.Source("forget"), Type: tidemill.TypeKeyPassed, Subject: "k", DataContentType: "application/json", Data: d}
	_, err = w.p.Publish(t.Context(), tidemill.StreamCommands, &v)
	w.must(err)
	w.label("secret", 1, "legit")
	w.runs(o)
	w.awaits("the dead letter", func() bool { return len(w.letters()) == 1 })
	if reason := w.letters()["secret"]; !strings.Contains(reason, "forgotten") {
		t.Errorf("%v", w.letters())
	}
	w.each(tidemill.StreamDeadLetters, func(e *broker.Incoming) {
		var d broker.DeadLetter
		w.must(json.Unmarshal(e.Data, &d))
		if d.Record != nil && len(d.Record.Value) > 0 {
			t.Errorf("the dead letter has the label's data: %s", d.Record.Value)
		}
	})
}

// Offsets that retention deletes before they were read, or before their wait was over, are named by dead letters.
func TestDeletedEventsAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.options(scorer(400*time.Millisecond, "legit"))
	stop := w.runs(o)
	w.answer(1, "k", "fraud")
	w.awaits("the first outcome", func() bool { return len(w.outcomes()) == 1 })
	_ = stop()
	for n := 2; n < 6; n++ {
		w.answer(n, "k", "fraud")
	}
	at := broker.Position{Stream: streamAnswers, Partition: broker.PartitionOf([]byte("k"), 3), Offset: 4}
	w.must(w.b.DeleteBelow(t.Context(), []broker.Position{at}))
	w.runs(o)
	w.awaits("the outcomes of what is left", func() bool { return len(w.outcomes()) == 2 })
	found := 0
	w.each(tidemill.StreamDeadLetters, func(e *broker.Incoming) {
		var d broker.DeadLetter
		w.must(json.Unmarshal(e.Data, &d))
		if d.Stream == streamAnswers && d.Offset == 1 && d.Last == 3 && strings.Contains(d.Reason, "deleted") {
			found++
		}
	})
	if found != 1 {
		t.Errorf("%d dead letters name the offsets: %v", found, w.letters())
	}
}

// Retention has deleted all of a stream before the wait was over. Its answers get no outcome, and a dead letter names them.
func TestAStreamThatIsEmptiedIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, err := open(t.Context(), w.options(scorer(time.Hour, "legit")))
	w.must(err)
	defer func() { w.must(s.close(t.Context())) }()
	for n := range 3 {
		w.answer(n, "k", "fraud")
	}
	end := broker.Position{Stream: streamAnswers, Partition: broker.PartitionOf([]byte("k"), 3), Offset: 3}
	w.awaits("the answers to be read", func() bool {
		w.must(s.gather(t.Context(), patience))
		s.moveRead()
		return s.answers.read[end.Partition] == end.Offset
	})
	w.must(w.b.DeleteBelow(t.Context(), []broker.Position{end}))
	w.must(s.expire(t.Context(), time.Now().Add(3*time.Hour)))
	if len(s.out.letters) != 1 {
		t.Fatalf("%d dead letters", len(s.out.letters))
	}
	var d broker.DeadLetter
	w.must(json.Unmarshal(s.out.letters[0].Data, &d))
	if d.Stream != streamAnswers || d.Partition != end.Partition || d.Offset != 0 || d.Last != 2 || !strings.Contains(d.Reason, "deleted") {
		t.Errorf("the dead letter is %+v", d)
	}
}

// again deletes a stream and creates it again.
func (w *world) again(stream string, partitions int) {
	w.Helper()
	w.must(w.kafka.Cluster().DeleteTopic(w.names.Topic(stream)))
	_, err := w.b.EnsureStreams(w.Context(), []broker.StreamSpec{{Name: stream, Partitions: partitions}}, broker.EnsureOptions{})
	w.must(err)
}

// The streams are created again, and are longer or shorter than before. All their answers get an outcome, and all their
// labels a dead letter.
func TestTheStreamsAreCreatedAgain(t *testing.T) {
	t.Parallel()
	for _, again := range []int{3, 12} {
		w := newWorld(t)
		w.runs(w.options(scorer(200*time.Millisecond, "legit")))
		put := func(name string, from, n int) {
			for i := range n {
				w.answer(from+i, "k", "fraud")
				w.label(name+strconv.Itoa(i), 900, "fraud")
			}
		}
		put("before", 0, 6)
		w.awaits("the outcomes", func() bool { return len(w.outcomes()) == 6 && len(w.letters()) == 6 })
		w.again(streamAnswers, 3)
		w.again(streamLabels, 2)
		put("after", 100, again)
		w.awaits("the outcomes of the new stream", func() bool { return len(w.outcomes()) == 6+again })
		w.awaits("the dead letters of the new stream", func() bool { // one more has no label
			all := w.letters()
			return len(all) == 7+again && strings.Contains(all[""], "created again")
		})
	}
}

// If a log has lost its end, the next owner goes on at its present end.
func TestALogThatHasLostItsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.runs(w.options(scorer(time.Hour, "")))
	for n := range 6 {
		w.answer(n, "k", "fraud")
		w.label("first", n, "fraud")
	}
	w.awaits("the outcomes", func() bool { return len(w.outcomes()) == 6 })
	_ = stop()
	beyond := map[string][]kafka.OffsetCommit{}
	for _, stream := range []string{streamAnswers, streamLabels} {
		ends, err := w.b.Ends(t.Context(), stream)
		w.must(err)
		for _, end := range ends {
			beyond[w.names.Topic(stream)] = append(beyond[w.names.Topic(stream)], kafka.OffsetCommit{Partition: int(end.Partition), Offset: end.Offset + 3})
		}
	}
	client := &kafka.Client{Addr: kafka.TCP(w.kafka.Kafka())}
	res, err := client.OffsetCommit(t.Context(), &kafka.OffsetCommitRequest{GroupID: w.names.Group(Group("s")), GenerationID: -1, Topics: beyond})
	w.must(err)
	for topic, all := range res.Topics {
		for _, p := range all {
			if p.Error != nil {
				t.Fatalf("%s: %v", topic, p.Error)
			}
		}
	}
	w.answer(7, "k", "fraud") // it is where a lost one was
	w.label("second", 7, "legit")
	w.runs(w.options(scorer(time.Hour, "")))
	w.answer(8, "k", "fraud")
	w.label("third", 8, "legit")
	w.awaits("the outcomes of the new answers", func() bool { return len(w.outcomes()) == 8 })
	for at, all := range w.outcomes() {
		if len(all) != 1 {
			t.Errorf("%s has %d outcomes", at, len(all))
		}
	}
}

// An owner that finds its files damaged reads the streams again.
func TestADamagedFolderIsMadeAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.options(scorer(time.Hour, ""))
	o.most = 5
	stop := w.runs(o)
	for n := range 20 {
		w.answer(n, "k", "fraud")
		w.label("first", n, "fraud")
	}
	w.awaits("the outcomes", func() bool { return len(w.outcomes()) == 20 })
	_ = stop()
	files, err := filepath.Glob(filepath.Join(o.Dir, "*", "[0-9]*"))
	w.must(err)
	if len(files) == 0 {
		t.Fatal("nothing is on disk")
	}
	for _, file := range files {
		w.must(os.WriteFile(file, []byte("damaged"), 0o600))
	}
	w.runs(o)
	w.label("second", 3, "legit")
	w.awaits("the correction", func() bool { return len(w.outcomes()[place(3)]) == 2 })
	w.label("second", 3, "legit")
	w.label("last", 4, "legit")
	w.awaits("the other correction", func() bool { return len(w.outcomes()[place(4)]) == 2 })
	if o := w.outcomes(); len(o) != 20 || len(o[place(3)]) != 2 {
		t.Errorf("%d outcomes; %+v", len(o), o[place(3)])
	}
}
