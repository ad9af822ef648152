package trials

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
)

func few() *tidemill.TrialTerms {
	t := terms()
	t.AtLeast = 40
	return &t
}

// labels returns the labels that versions 1 and 2 give to an event. better and worse say how many of ten events only
// version 2, or only version 1, answers right.
func labelsOf(n, better, worse int) map[int]string {
	switch d := n % 10; {
	case d < better:
		return map[int]string{1: "ham", 2: "spam", 3: "spam"}
	case d < better+worse:
		return map[int]string{1: "spam", 2: "ham", 3: "spam"}
	}
	return map[int]string{1: "spam", 2: "spam", 3: "spam"}
}

// checkAgain computes a verdict again and compares it with the recorded one.
func (w *world) checkAgain(v *ledger.VersionRecord) {
	w.Helper()
	again, err := Again(w.Context(), w.options(), v)
	if err != nil || len(again.Differs) > 0 || !reflect.DeepEqual(again.Verdict.Read, v.Judgement.Trial.Read) {
		w.Errorf("again: %+v differs in %v from %+v: %v", again.Verdict, again.Differs, v.Judgement.Trial, err)
	}
	recorded := v.Judgement.Clauses[len(v.Judgement.Clauses)-len(again.Clauses):]
	if !reflect.DeepEqual(again.Clauses, recorded) {
		w.Errorf("clauses: %+v, recorded %+v", again.Clauses, recorded)
	}
}

// A candidate that is better on events of the past and of the present is promoted by their outcomes, a worse one
// is refused. Each verdict can be computed again from the logs.
func TestTrialsDecideByOutcomes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, key := range []string{"better", "worse"} {
		w.version(key, nil)
	}
	publish := func(key string, n, better, worse int) {
		at := w.answered(key, n, 1, labelsOf(n, better, worse))
		w.outcome(key, at, 1, labelsOf(n, better, worse)[1], "spam", 1)
		if n < 30 && n%7 == 0 { // corrected, and corrected back; a trial may end between the two
			w.outcome(key, at, 1, labelsOf(n, better, worse)[1], "ham", 2)
			w.outcome(key, at, 1, labelsOf(n, better, worse)[1], "spam", 3)
		}
	}
	for n := range 30 { // the past
		publish("better", n, 5, 0)
		publish("worse", n, 0, 5)
	}
	for _, key := range []string{"better", "worse"} {
		if m := w.version(key, few()); m.OnTrial() == nil {
			t.Fatalf("%+v", m)
		}
	}
	w.run(w.options())
	w.wait("the past", func(all []api.Trial) bool {
		return len(all) == 2 && all[0].Answered == 30 && all[0].Labelled == 30 && all[1].Answered == 30
	})
	for n := 30; n < 100; n++ { // the present
		publish("better", n, 5, 0)
		publish("worse", n, 0, 5)
	}
	v := w.ended("better", 2)
	if v.State != tidemill.VersionPromoted || v.Judgement.Trial.Outcome != tidemill.TrialPassed || v.Judgement.Trial.Losses != 0 || v.Judgement.Trial.Wins < 15 {
		t.Errorf("%s: %+v", v.State, v.Judgement)
	}
	w.checkAgain(v)
	v = w.ended("worse", 2)
	if v.State != tidemill.VersionRefused || v.Judgement.Trial.Outcome != tidemill.TrialRefused || !strings.Contains(v.Judgement.Sentence, "stream.lead.high < 0") {
		t.Errorf("%s: %+v", v.State, v.Judgement)
	}
	w.checkAgain(v)
	w.wait("the end", func(all []api.Trial) bool { return len(all) == 0 })
	// A verdict that was changed is found.
	forged := *v.Judgement
	trial := *forged.Trial
	trial.Wins++
	forged.Trial, v.Judgement = &trial, &forged
	if again, err := Again(t.Context(), w.options(), v); err != nil || fmt.Sprint(again.Differs) != "[counts]" {
		t.Errorf("%v, %v", again.Differs, err)
	}
}

// The new leader of a partition shows no events for a moment. None of them is taken for lost.
func TestTrialsWaitForANewLeader(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.version("a", nil)
	for n := range 60 {
		w.answered("a", n, 1, labelsOf(n, 1, 1))
	}
	w.version("a", few())
	k := w.servers.Cluster()
	var left atomic.Int32 // requests that are still answered with nothing
	left.Store(3)
	messages := k.TopicInfo(w.names.Topic("messages")).TopicID
	k.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		req := r.(*kmsg.FetchRequest)
		if left.Load() == 0 || len(req.Topics) != 1 || req.Topics[0].TopicID != messages && req.Topics[0].Topic != w.names.Topic("messages") {
			return nil, nil, false
		}
		left.Add(-1)
		answer, one, part := r.ResponseKind().(*kmsg.FetchResponse), kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
		part.Partition = req.Topics[0].Partitions[0].Partition
		part.HighWatermark = req.Topics[0].Partitions[0].FetchOffset
		part.LastStableOffset = part.HighWatermark
		one.Topic, one.TopicID, one.Partitions = req.Topics[0].Topic, req.Topics[0].TopicID, append(one.Partitions, part)
		answer.Topics = append(answer.Topics, one)
		return answer, nil, true
	})
	w.run(w.options())
	w.wait("all events", func(all []api.Trial) bool { return len(all) == 1 && all[0].Answered == 60 })
	if n := left.Load(); n > 0 {
		t.Errorf("%d requests of three were not sent", n)
	}
}

// A trial without labels knows only how often the candidate disagrees, says so, and is given up.
func TestTrialsWithoutLabelsAreGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.version("a", nil)
	for n := range 60 {
		w.answered("a", n, 1, labelsOf(n, 1, 1))
	}
	patient := few()
	patient.Until = 3 * time.Second
	w.version("a", patient)
	w.run(w.options())
	w.wait("all events", func(all []api.Trial) bool {
		return len(all) == 1 && all[0].Answered == 60 && all[0].Agreed == 48 && strings.Contains(all[0].Text, "no label has come yet") && all[0].P99 > 0
	})
	v := w.ended("a", 2)
	if v.State != tidemill.VersionRefused || v.Judgement.Trial.Outcome != tidemill.TrialGivenUp || !strings.Contains(v.Judgement.Sentence, "no label has come") {
		t.Errorf("%s: %+v", v.State, v.Judgement)
	}
	w.checkAgain(v)
}

// A process that is stopped in the middle leaves nothing behind: the next one reads the same records. If the
// champion changes, the trial begins again with the answers of the new one.
func TestTrialsGoOnElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.version("a", nil)
	for n := range 37 {
		w.outcome("a", w.answered("a", n, 1, labelsOf(n, 5, 0)), 1, labelsOf(n, 5, 0)[1], "spam", 1)
	}
	w.version("a", few())
	stop := w.run(w.options())
	w.wait("the past", func(all []api.Trial) bool { return len(all) == 1 && all[0].Labelled == 37 })
	stop()
	w.told = nil
	w.mu.Lock()
	w.away = true
	w.mu.Unlock()
	stop = w.run(w.options())
	w.wait("a candidate that cannot answer", func(all []api.Trial) bool { return len(all) == 1 && strings.Contains(all[0].Error, "it is away") })
	w.mu.Lock()
	w.away = false
	w.mu.Unlock()
	w.wait("the past again", func(all []api.Trial) bool { return len(all) == 1 && all[0].Labelled == 37 && all[0].Error == "" })
	for n := 37; n < 41; n++ {
		w.outcome("a", w.answered("a", n, 1, labelsOf(n, 5, 0)), 1, labelsOf(n, 5, 0)[1], "spam", 1)
	}
	v := w.ended("a", 2)
	if v.State != tidemill.VersionPromoted || v.Judgement.Trial.Labelled < 40 {
		t.Errorf("%s: %+v", v.State, v.Judgement.Trial)
	}
	w.checkAgain(v)

	w.version("a", few()) // version 3, against version 2
	w.wait("version 3", func(all []api.Trial) bool { return len(all) == 1 && all[0].Version == 3 && all[0].Champion == 2 })
	at := w.answered("a", 50, 2, map[int]string{2: "ham", 3: "spam"})
	w.wait("an answer of version 2", func(all []api.Trial) bool { return len(all) == 1 && all[0].Answered == 1 })
	w.outcome("a", at, 2, "ham", "spam", 1)
	w.wait("its truth", func(all []api.Trial) bool { return len(all) == 1 && all[0].Wins == 1 })
	stop()
}

// A trial whose candidate cannot answer until its end is given up. It is not refused or promoted by the events that the
// candidate did answer.
func TestACandidateCannotAnswerUntilTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.version("a", nil)
	for n := range 60 {
		w.outcome("a", w.answered("a", n, 1, labelsOf(n, 5, 0)), 1, labelsOf(n, 5, 0)[1], "spam", 1)
	}
	over := few()
	over.Until = time.Nanosecond
	w.version("a", over)
	w.answers = 50 // enough for a verdict
	w.run(w.options())
	v := w.ended("a", 2)
	if trial := v.Judgement.Trial; trial.Outcome != tidemill.TrialGivenUp || trial.Answered != 50 || !strings.HasSuffix(v.Judgement.Sentence, ": its trial is given up after 1ns: the candidate has not answered 10 events of the champion: the candidate cannot answer now: it is away") {
		t.Errorf("%+v", v.Judgement)
	}
}

// A candidate that cannot be loaded for now, for example because its files are lost, does not end the trials of others.
func TestACandidateThatIsAwayDoesNotKeepOthersWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keys := []string{"a", "b", "c"}
	for _, key := range keys {
		w.version(key, nil)
	}
	for n := range 60 {
		for _, key := range keys {
			w.outcome(key, w.answered(key, n, 1, labelsOf(n, 5, 0)), 1, labelsOf(n, 5, 0)[1], "spam", 1)
		}
	}
	for _, key := range keys {
		w.version(key, few())
	}
	o := w.options()
	load := o.Load
	o.Load = func(ctx context.Context, v *tidemill.Version) (Candidate, error) {
		if v.Model == "m/a" {
			return nil, fmt.Errorf("%w: its files are lost", ErrLater)
		}
		return load(ctx, v)
	}
	w.run(o)
	for _, key := range keys[1:] {
		if v := w.ended(key, 2); v.State != tidemill.VersionPromoted {
			t.Errorf("%s is %s: %+v", key, v.State, v.Judgement)
		}
	}
	w.wait("the other one", func(all []api.Trial) bool {
		return len(all) == 1 && strings.HasSuffix(all[0].Error, "its files are lost")
	})
}

// A runner that begins after the end of a trial still reads what came until then.
func TestWhatATrialMustRead(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		lasts  time.Duration
		open   int
		behind int64
		away   string
		want   bool
	}{
		"all is read":                            {lasts: time.Hour},
		"an answer is missing":                   {lasts: time.Hour, open: 1, want: true},
		"it decides while it reads":              {lasts: time.Hour, behind: 5},
		"the candidate is away":                  {lasts: time.Hour, open: 1, away: "away", want: true},
		"at the end":                             {lasts: 48 * time.Hour},
		"at the end, with answers that are open": {lasts: 48 * time.Hour, open: 1, want: true},
		"at the end, with records that are left": {lasts: 90 * time.Hour, behind: 5, want: true},
		"at the end, and the candidate is away":  {lasts: 48 * time.Hour, open: 1, away: "away"},
		"long after the end, and it is too slow": {lasts: 96 * time.Hour, open: 1, behind: 5},
		"long after the end, and all is read":    {lasts: 96 * time.Hour},
	} {
		one := &trial{v: &ledger.VersionRecord{}, began: now.Add(-c.lasts), rules: &rules{TrialTerms: tidemill.TrialTerms{Until: 48 * time.Hour}}, seen: newCollection(), lastErr: c.away}
		one.v.Model = "m"
		one.seen.needed = make([]place, c.open)
		r := &runner{Options: Options{Scorer: scorer()}, cohorts: []*cohort{{trials: map[string]*trial{"m": one}, behind: map[string]int64{"scored": c.behind}}}}
		if got := r.mustRead(one, now); got != c.want {
			t.Errorf("%s: it must read: %v", name, got)
		}
	}
}

// An event that the candidate cannot answer counts as an error and as wrong. Events that their stream has lost
// count as nothing.
func TestErrorsCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.version("a", nil)
	lost := w.answered("a", 0, 1, map[int]string{1: "spam", 2: "spam"})
	for n := 1; n < 12; n++ {
		labels := map[int]string{1: "spam", 2: "spam"}
		if n == 5 {
			delete(labels, 2)
		}
		w.outcome("a", w.answered("a", n, 1, labels), 1, "spam", "spam", 1)
	}
	w.must(w.broker.DeleteBelow(t.Context(), []broker.Position{{Stream: lost.Stream, Partition: lost.Partition, Offset: lost.Offset + 1}}))
	w.version("a", few())
	w.run(w.options())
	w.wait("all events", func(all []api.Trial) bool {
		return len(all) == 1 && all[0].Answered == 11 && all[0].Errors == 1 && all[0].Losses == 1 && all[0].Agreed == 10
	})
}

// The stream was created again: other events have the places of some answers, and its log is shorter. Such answers count as
// nothing, and the trial goes on.
func TestAnswersToEventsOfAnOldStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.version("a", nil)
	labels := map[int]string{1: "spam", 2: "ham"}
	data, err := json.Marshal(labels)
	w.must(err)
	other := broker.Position{Stream: "messages", Partition: 1}
	other.Offset = w.send("messages", 1, &broker.View{ID: "a-other", Source: "/test", Type: "message", Subject: "a", Data: data, DataContentType: "application/json"})
	w.answer("a", "a-old", other, 1, "spam")
	w.answer("a", "a-older", broker.Position{Stream: "messages", Partition: 0, Offset: 1000}, 1, "spam")
	for n := range 4 {
		w.outcome("a", w.answered("a", n, 1, labels), 1, "spam", "ham", 1)
	}
	w.version("a", few())
	w.run(w.options())
	w.wait("the other events", func(all []api.Trial) bool { return len(all) == 1 && all[0].Answered == 4 && all[0].Wins == 4 })
}

// The answers' stream is created again and is longer than before. The trial counts all of its answers and none of the old.
func TestTheAnswersAreCreatedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.version("a", nil)
	publish := func(from, n int, truth string) {
		labels := map[int]string{1: "spam", 2: "ham"}
		for i := range n {
			w.outcome("a", w.answered("a", from+i, 1, labels), 1, "spam", truth, 1)
		}
	}
	publish(0, 10, "ham")
	w.version("a", few())
	w.run(w.options())
	w.wait("ten wins", func(all []api.Trial) bool { return len(all) == 1 && all[0].Answered == 10 && all[0].Wins == 10 })
	w.must(w.servers.Cluster().DeleteTopic(w.names.Topic("scored")))
	_, err := w.broker.EnsureStreams(t.Context(), []broker.StreamSpec{{Name: "scored", Partitions: 2}}, broker.EnsureOptions{})
	w.must(err)
	publish(100, 20, "spam")
	w.wait("the new answers", func(all []api.Trial) bool { return len(all) == 1 && all[0].Answered == 20 && all[0].Wins == 0 })
}

// The answers' stream gets partitions. The trial counts the answers in them, too, and its verdict can be computed again.
func TestTheAnswersGetPartitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.version("a", nil)
	publish := func(from, n int) {
		for i := from; i < from+n; i++ {
			labels := labelsOf(i, 8, 0)
			w.outcome("a", w.answered("a", i, 1, labels), 1, labels[1], "spam", 1)
		}
	}
	publish(0, 10)
	all := few()
	all.AtLeast = 60
	w.version("a", all)
	w.run(w.options())
	w.wait("the first answers", func(all []api.Trial) bool { return len(all) == 1 && all[0].Answered == 10 })
	w.scored = 4
	_, err := w.broker.EnsureStreams(t.Context(), []broker.StreamSpec{{Name: "scored", Partitions: int(w.scored)}}, broker.EnsureOptions{})
	w.must(err)
	publish(10, 50)
	w.checkAgain(w.ended("a", 2))
}

// Two processes that run the same trials propose one end.
func TestTwoRunnersEndATrialOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.version("a", nil)
	for n := range 60 {
		w.outcome("a", w.answered("a", n, 1, labelsOf(n, 5, 0)), 1, labelsOf(n, 5, 0)[1], "spam", 1)
	}
	w.run(w.options())
	w.run(w.options())
	w.version("a", few())
	w.ended("a", 2)
	promoted := map[string]bool{}
	from, err := w.broker.Places(t.Context(), tidemill.StreamFacts, broker.Earliest())
	w.must(err)
	_, err = w.broker.ReadBack(context.WithoutCancel(t.Context()), from, func(e *broker.Incoming) {
		if version, _ := e.Attribute(tidemill.AttrModelVersion); e.Type == tidemill.TypeModelPromoted && version == "2" {
			promoted[e.ID] = true
		}
	})
	w.must(err)
	if m := w.model("a"); m.Champion != 2 || len(m.Trials) != 1 || len(promoted) > 1 {
		t.Errorf("%+v, %d promotions", m, len(promoted))
	}
}
