package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

const (
	watchEvery  = time.Second
	usualHeight = 24
	usualWidth  = 100
)

// runWatch shows runs again and again: on a terminal as a table that is drawn
// anew, elsewhere as a line a change.
type runWatch struct {
	list *runList
	g    *remote.Gateway
	out  io.Writer

	screen *os.File          // nil where the output is no terminal
	drawn  int               // lines of the table that stands there
	told   map[string]string // the newest line of each run
}

func newRunWatch(l *runList, g *remote.Gateway, s *session) *runWatch {
	w := &runWatch{list: l, g: g, out: s.stdout, told: map[string]string{}}
	if f, ok := s.stdout.(*os.File); ok && isTerminal(f) {
		w.screen = f
	}
	return w
}

// run goes on until somebody ends it, which is no failure.
func (w *runWatch) run(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		all, err := w.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := w.show(all, time.Now()); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look finds those that are live, however long ago they were asked for, and the
// newest of all.
func (w *runWatch) look(ctx context.Context) ([]api.RunShown, error) {
	newest, _, err := gatherRuns(ctx, w.g, w.list.query(w.list.limit))
	if err != nil || len(w.list.states) > 0 {
		return byLiveliness(newest, nil), err
	}
	q := w.list.query(w.list.limit)
	q.States = []tidemill.RunState{tidemill.RunRunning, tidemill.RunResting, tidemill.RunSettling}
	live, _, err := gatherRuns(ctx, w.g, q)
	return byLiveliness(newest, live), err
}

// byLiveliness puts those first that are live, then those that wait, then those
// that have ended, the newest first.
func byLiveliness(newest, live []api.RunShown) []api.RunShown {
	all := slices.Clone(live)
	known := map[string]bool{}
	for i := range live {
		known[live[i].ID] = true
	}
	for i := range newest {
		if !known[newest[i].ID] {
			all = append(all, newest[i])
		}
	}
	slices.SortStableFunc(all, func(a, b api.RunShown) int {
		return cmp.Or(cmp.Compare(liveliness(&a), liveliness(&b)), b.End.Compare(a.End))
	})
	return all
}

func liveliness(r *api.RunShown) int {
	switch {
	case r.State.Ended():
		return 2
	case r.State == tidemill.RunWaiting:
		return 1
	}
	return 0
}

func (w *runWatch) show(all []api.RunShown, now time.Time) error {
	if w.screen == nil {
		return w.tell(all, now)
	}
	width, height, err := term.GetSize(int(w.screen.Fd()))
	if err != nil {
		width, height = usualWidth, usualHeight
	}
	frame := runFrame(all, now, width, height)
	_, err = fmt.Fprint(w.out, w.over()+frame)
	w.drawn = strings.Count(frame, "\n")
	return err
}

// over takes the cursor to where the table began, and what stands there away.
func (w *runWatch) over() string {
	if w.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\x1b[J", w.drawn)
}

// runFrame is the table as far as it fits a screen.
func runFrame(all []api.RunShown, now time.Time, width, height int) string {
	counts := map[int]int{}
	for i := range all {
		counts[liveliness(&all[i])]++
	}
	head := fmt.Sprintf("%s live, %d waiting, %d ended   %s   Ctrl-C ends this\n", count(counts[0], "run"), counts[1], counts[2], now.Format(time.TimeOnly))
	rows := max(height-4, 1)
	left := len(all) - rows
	var table strings.Builder
	_ = tabulateRuns(&table, all[:min(len(all), rows)], now) // a builder takes all
	var frame strings.Builder
	for line := range strings.Lines(head + table.String()) {
		frame.WriteString(cut(strings.TrimRight(line, " \n"), max(width-1, 20)) + "\n")
	}
	if left > 0 {
		fmt.Fprintf(&frame, "… and %d more\n", left)
	}
	return frame.String()
}

// tell prints a line of each run of which there is something new.
func (w *runWatch) tell(all []api.RunShown, now time.Time) error {
	for i := range slices.Backward(all) {
		r := &all[i]
		text := strings.TrimRight(fmt.Sprintf("%s  %s  %s  %s  %s", shortID(r.ID), harmless(r.Recipe), orDash(harmless(r.Key)), stateOfRun(r), harmless(noteOf(r))), " ")
		if w.told[r.ID] == text {
			continue
		}
		w.told[r.ID] = text
		if _, err := fmt.Fprintf(w.out, "%s  %s\n", now.Format(time.TimeOnly), text); err != nil {
			return err
		}
	}
	return nil
}
