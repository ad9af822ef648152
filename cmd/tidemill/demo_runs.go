package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

// demoBots have a model trained each.
var demoBots = [...]string{"bot-1", "bot-2", "bot-3"}

const demoGlance = 250 * time.Millisecond

// watchDemoRuns shows a line each time that something has come on, until the
// first runs of all bots have ended.
func watchDemoRuns(ctx context.Context, door *remote.Gateway, out io.Writer) error {
	t := time.NewTicker(demoGlance)
	defer t.Stop()
	for last := ""; ; {
		page, err := door.Runs(ctx, remote.RunQuery{Recipe: demoRecipe})
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(page.Runs, func(r api.RunShown) bool { return r.State == tidemill.RunFailed }); i >= 0 {
			r := &page.Runs[i]
			return fmt.Errorf("run %s of %s has failed: %s", r.ID, r.Key, r.Reason)
		}
		line, ended := demoLine(page.Runs)
		if line != last {
			fmt.Fprintf(out, "  %s\n", line)
			last = line
		}
		if ended == len(demoBots) {
			return nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("the runs have not ended: %s: %w", line, context.Cause(ctx))
		}
	}
}

// demoLine is how far the runs are, in one line.
func demoLine(all []api.RunShown) (line string, ended int) {
	var parts []string
	for _, bot := range demoBots {
		part := bot + " not yet asked for"
		for i := range all {
			if r := &all[i]; r.Key == bot {
				part = bot + " " + string(r.State)
				if p := r.Progress; p != nil && !r.State.Ended() {
					part += fmt.Sprintf(" %.0f/%.0f, loss %.3f", p.Step, p.Total, p.Metrics["loss"])
				}
				if r.State.Ended() {
					ended++
				}
			}
		}
		parts = append(parts, fmt.Sprintf("%-34s", part))
	}
	return strings.TrimRight(strings.Join(parts, " "), " "), ended
}
