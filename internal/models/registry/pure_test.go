package registry

import (
	"fmt"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

func TestALostRace(t *testing.T) {
	t.Parallel()
	failed := func(texts ...string) (all []tidemill.Clause) {
		for _, text := range texts {
			all = append(all, tidemill.Clause{Text: text})
		}
		return append(all, tidemill.Clause{Text: "data.x.files > 1", Passed: true})
	}
	const own, theirs = "metrics.accuracy > 0.8", "metrics.accuracy >= champion.metrics.accuracy"
	for name, c := range map[string]struct {
		j    tidemill.Judgement
		on   tidemill.GateOn
		lost bool
	}{
		"beside another":        {tidemill.Judgement{Against: 3, Beside: 2, Clauses: failed(theirs)}, tidemill.GateOnSame, true},
		"beside none":           {tidemill.Judgement{Against: 3, Clauses: failed(theirs)}, tidemill.GateOnSame, true},
		"beside the champion":   {tidemill.Judgement{Against: 3, Beside: 3, Clauses: failed(theirs)}, tidemill.GateOnSame, false},
		"bad by itself":         {tidemill.Judgement{Against: 3, Beside: 2, Clauses: failed(own, theirs)}, tidemill.GateOnSame, false},
		"by what is recorded":   {tidemill.Judgement{Against: 3, Beside: 2, Clauses: failed(theirs)}, tidemill.GateOnRecorded, false},
		"it passed":             {tidemill.Judgement{Passed: true, Against: 3, Beside: 2, Clauses: failed()}, tidemill.GateOnSame, false},
		"no champion":           {tidemill.Judgement{Clauses: failed(own)}, tidemill.GateOnSame, false},
		"of other things alike": {tidemill.Judgement{Against: 3, Beside: 2, Clauses: failed("metrics.championship > 1")}, tidemill.GateOnSame, false},
	} {
		if got := lostRace(&c.j, c.on); got != c.lost {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestNewerRuns(t *testing.T) {
	t.Parallel()
	at := func(n int, partition int32) fold.Held {
		return fold.Held{Number: n, Mark: tidemill.Mark{Partition: partition, Offset: int64(n)}, Began: time.Unix(int64(n), 0)}
	}
	m := &fold.Model{Versions: []fold.Held{at(5, 0), at(7, 1)}}
	for _, c := range []struct {
		of   fold.Held
		want bool
	}{{at(4, 0), true}, {at(6, 0), true}, {at(6, 1), true}, {at(8, 0), false}, {at(7, 1), false}} {
		if got := hasNewer(m, &c.of); got != c.want {
			t.Errorf("of %+v: %v", c.of, got)
		}
	}
}

// Of too many metrics, the metrics that the gate names are kept, and then the metrics that are
// nested least.
func TestChosenMetrics(t *testing.T) {
	t.Parallel()
	all := map[string]float64{"accuracy": 1, "by.class.f1": 2}
	for i := range 40 {
		all[fmt.Sprintf("loss%02d", i)] = float64(i)
	}
	few := chosenMetrics(all, []string{"metrics.by.class.f1 > 1", `metrics["loss39"] < 1`})
	if len(few) != tidemill.MaxMetrics || few["by.class.f1"] != 2 || few["loss39"] != 39 || few["accuracy"] != 1 || few["loss00"] != 0 {
		t.Errorf("chosen were %v", few)
	}
	if few := chosenMetrics(all, nil); few["by.class.f1"] != 0 || len(few) != tidemill.MaxMetrics {
		t.Errorf("without a gate chosen were %v", few)
	}
}
