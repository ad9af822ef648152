//go:build slow

package crash

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
)

// judge checks the result of a round: two events, the second of which came during the first event's
// runs, have made two runs of each recipe, one after the other.
func (r *round) judge(ctx context.Context, all []tidemill.Run) (found []string) {
	for _, recipe := range []string{cleans, learns} {
		runs := slices.DeleteFunc(slices.Clone(all), func(r tidemill.Run) bool { return r.Recipe != recipe })
		for _, f := range r.judgeRecipe(ctx, recipe, runs) {
			found = append(found, recipe+": "+f)
		}
	}
	return found
}

func (r *round) judgeRecipe(ctx context.Context, recipe string, runs []tidemill.Run) (found []string) {
	if len(runs) != events {
		return []string{fmt.Sprintf("there are %d runs: %+v", len(runs), runs)}
	}
	called, err := os.ReadFile(filepath.Join(r.dir, callsFile))
	if err != nil {
		found = append(found, err.Error())
	}
	for i := range runs {
		found = append(found, r.judgeRun(&runs[i], i+1, strings.Count(string(called), runs[i].ID))...)
	}
	found = append(found, r.judgeLog(ctx, recipe, runs)...)
	if recipe == learns {
		return append(found, r.judgeModel(ctx, runs)...)
	}
	return append(found, r.judgeData(ctx, runs)...)
}

// judgeRun checks the run of one event and the number of its command's calls.
func (r *round) judgeRun(run *tidemill.Run, number, calls int) (found []string) {
	fault := func(format string, words ...any) {
		found = append(found, fmt.Sprintf("run %d: ", number)+fmt.Sprintf(format, words...))
	}
	if run.State != tidemill.RunSucceeded {
		fault("it has %s: %s", run.State, run.Reason)
	}
	if want := tidemill.RunID(run.Recipe, key, tidemill.Cause{Source: "/crash", ID: fmt.Sprint(number)}); run.ID != want || run.Causes != 1 {
		fault("it is %s of %d causes, and the event's is %s", run.ID, run.Causes, want)
	}
	if calls < 1 || calls > len(run.Attempts) {
		fault("its command was called %d times in %d attempts", calls, len(run.Attempts))
	}
	if !r.at.kill && len(run.Attempts) > 1 {
		fault("nothing was killed, and there were %d attempts: %+v", len(run.Attempts), run.Attempts)
	}
	return found
}

// judgeLog folds the facts again, and looks for the events of the commits.
func (r *round) judgeLog(ctx context.Context, recipe string, runs []tidemill.Run) (found []string) {
	b, err := r.dial(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	defer b.Close()
	var m fold.Making
	accepted := map[string]int{}
	err = read(ctx, b, tidemill.StreamFacts, func(e *broker.Incoming) {
		v := e.View.Clone() // the fold keeps references to its texts
		f := fold.Fact{Partition: runs[0].Partition, Offset: e.Offset, ID: v.ID, Type: v.Type, Key: v.Subject, At: e.Time, Data: v.Data}
		f.Recipe, _ = v.Attribute(tidemill.AttrRecipe)
		f.Run, _ = v.Attribute(tidemill.AttrRun)
		if f.Recipe != recipe || !strings.HasPrefix(v.Type, "tidemill.run.") {
			return
		}
		if m.Apply(f).Result == fold.Accepted {
			accepted[v.Type]++
		}
	})
	if err != nil {
		return []string{err.Error()}
	}
	if m.Live != nil || m.Waiting != nil || !slices.Equal(m.Ended, []string{runs[0].ID, runs[1].ID}) {
		found = append(found, fmt.Sprintf("the facts make %+v", m))
	}
	attempts := len(runs[0].Attempts) + len(runs[1].Attempts)
	want := map[string]int{tidemill.TypeRunRequested: events, tidemill.TypeRunStarted: attempts, tidemill.TypeRunFinished: attempts}
	if recipe == cleans {
		want[tidemill.TypeRunCommitted] = events
	}
	if !maps.Equal(accepted, want) {
		found = append(found, fmt.Sprintf("accepted were %v, want %v", accepted, want))
	}
	if recipe != cleans {
		return found
	}
	return append(found, judgeNews(ctx, b, runs)...)
}

func (r *round) dial(ctx context.Context) (*broker.Broker, error) {
	names, err := tidemill.NewNames("crash")
	if err != nil {
		return nil, err
	}
	return broker.Open(ctx, broker.Options{Addr: r.toKafka.addr(), Names: names})
}

// judgeNews compares the new-data events with the runs' commits.
func judgeNews(ctx context.Context, b *broker.Broker, runs []tidemill.Run) []string {
	told := map[string]string{} // commits by event id, because an event may be on the stream twice
	err := read(ctx, b, tidemill.StreamEvents, func(e *broker.Incoming) {
		if v := e.View.Clone(); v.Type == tidemill.TypeNewData {
			told[v.ID], _ = v.Attribute(tidemill.AttrCommit)
		}
	})
	commits := slices.Sorted(maps.Values(told))
	if want := slices.Sorted(slices.Values([]string{runs[0].Commit, runs[1].Commit})); err != nil || !slices.Equal(commits, want) {
		return []string{fmt.Sprintf("of new data tell %v, and the runs' commits are %v: %v", told, want, err)}
	}
	return nil
}

func read(ctx context.Context, b *broker.Broker, stream string, fn func(*broker.Incoming)) error {
	from, err := b.Places(ctx, stream, broker.Earliest())
	if err != nil {
		return err
	}
	_, err = b.ReadBack(ctx, from, fn)
	return err
}

// judgeData checks that each run has made one commit on the dataset.
func (r *round) judgeData(ctx context.Context, runs []tidemill.Run) (found []string) {
	s, err := openStore(ctx, r)
	if err != nil {
		return []string{err.Error()}
	}
	defer s.Close()
	head, err := s.Head(ctx, "clean/"+key, "main")
	if err != nil || head.Number != events || head.Parent != runs[0].Commit {
		found = append(found, fmt.Sprintf("the dataset's head is %+v: %v", head, err))
	}
	for i := range runs {
		c, err := s.FindCommit(ctx, "clean/"+key, runs[i].Commit)
		if err != nil || c.Number != int64(i+1) || c.Run != runs[i].ID || c.Files < 1 {
			found = append(found, fmt.Sprintf("the commit of run %d is %+v: %v", i+1, c, err))
		}
	}
	return found
}
