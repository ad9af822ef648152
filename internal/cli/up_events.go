package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	rules "tidemill.dev/config/gate"
	"tidemill.dev/internal/cli/remote"
	"tidemill.dev/internal/cli/show"
)

// happenings prints one line for each end of a run, each verdict on a version, each version that a
// scorer begins to use, and each champion that it cannot use.
type happenings struct {
	b      *broker.Broker
	config func() *config.Config
	log    *slog.Logger

	mu    sync.Mutex
	out   io.Writer
	swaps map[string]string // last printed line of a scorer, by type, scorer and model
}

// run prints until the context ends.
func (h *happenings) run(ctx context.Context) {
	var following sync.WaitGroup
	for _, stream := range []string{tidemill.StreamFacts, tidemill.StreamProgress} {
		following.Go(func() {
			for ctx.Err() == nil {
				if err := h.follow(ctx, stream); err != nil && ctx.Err() == nil {
					h.log.Warn("up: reading what happens failed; some lines are missing, retrying", "stream", stream, "reason", err)
					_ = retry.Sleep(ctx, time.Second) // the loop checks the context
				}
			}
		})
	}
	following.Wait()
}

func (h *happenings) follow(ctx context.Context, stream string) error {
	r, err := follow.OpenReader(ctx, h.b, follow.ReaderOptions{Stream: stream, Start: broker.Latest(), MaxBytes: 8 << 20})
	if err != nil {
		return err
	}
	defer func() { _ = r.Close(context.WithoutCancel(ctx)) }() // it only reads
	for {
		events, err := r.Next(ctx)
		if err != nil {
			return err
		}
		for i := range events {
			if events[i].Err == nil {
				h.tell(&events[i])
			}
		}
	}
}

func (h *happenings) tell(e *follow.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if text := h.text(&e.View); text != "" {
		fmt.Fprintf(h.out, "%s  %s\n", e.Received.Local().Format(time.TimeOnly), show.Harmless(text))
	}
}

// text returns the line for an event; empty for events without one.
func (h *happenings) text(v *broker.View) string {
	switch v.Type {
	case tidemill.TypeRunFinished:
		return h.runText(v)
	case tidemill.TypeModelPromoted, tidemill.TypeTrialBegun, tidemill.TypeModelRefused, tidemill.TypeModelAwaiting, tidemill.TypeModelCanary, tidemill.TypeModelRolledBack:
		return verdictText(v)
	case tidemill.TypeScorerSwapped, tidemill.TypeModelUnloadable:
		return h.swapText(v)
	case tidemill.TypeModelDrifted:
		return driftLine(v)
	}
	return ""
}

func (h *happenings) runText(v *broker.View) string {
	var d tidemill.RunFinished
	if json.Unmarshal(v.Data, &d) != nil {
		return ""
	}
	recipe, _ := v.Attribute(tidemill.AttrRecipe)
	run, _ := v.Attribute(tidemill.AttrRun)
	took := 0.0
	for _, s := range d.Stages {
		took += s.Seconds
	}
	r, _ := h.config().Recipe(recipe) // a recipe that is no longer in the config has no gate and no attempts
	outcome := string(d.Outcome)
	if d.Outcome == tidemill.OutcomeFailed && !d.Permanent && d.Attempt < r.Run.Attempts {
		outcome = fmt.Sprintf("attempt %d of %d failed", d.Attempt, r.Run.Attempts)
	}
	text := fmt.Sprintf("run %s  %s %s  %s after %s", show.ShortID(run), recipe, v.Subject, outcome, time.Duration(took*float64(time.Second)).Round(time.Millisecond))
	switch {
	case d.Reason != "":
		return text + ": " + d.Reason
	case len(d.Metrics) > 0:
		return text + ": " + remote.Headline(d.Metrics, rules.Metrics(r.Gate)...)
	}
	return text
}

func driftLine(v *broker.View) string {
	var d tidemill.ModelDrifted
	if json.Unmarshal(v.Data, &d) != nil {
		return ""
	}
	model, _ := v.Attribute(tidemill.AttrModel)
	return "model " + tidemill.VersionName(model, d.Version) + "  drifts: " + remote.DriftText(&d)
}

func verdictText(v *broker.View) string {
	var d tidemill.ModelAnnounced
	if json.Unmarshal(v.Data, &d) != nil {
		return ""
	}
	model, _ := v.Attribute(tidemill.AttrModel)
	by, _ := v.Attribute(tidemill.AttrAuthID)
	text := "model " + tidemill.VersionName(model, d.Version) + "  " + map[string]string{tidemill.TypeModelPromoted: "is the champion", tidemill.TypeModelRefused: "is refused", tidemill.TypeTrialBegun: "is on trial",
		tidemill.TypeModelAwaiting: "waits for a person", tidemill.TypeModelCanary: "answers a share of the events", tidemill.TypeModelRolledBack: "is the champion again"}[v.Type]
	switch {
	case by != "":
		text += ", by " + by
	case d.Judgement != nil:
		_, why, _ := strings.Cut(d.Judgement.Sentence, ": ")
		text += ": " + why
	}
	return text
}

// swapText returns the line for a swap, or for a champion that cannot be loaded. Each partition of a
// scorer's stream and each process report it, and it is printed once.
func (h *happenings) swapText(v *broker.View) string {
	var d tidemill.ModelUnloadable // a swap has the scorer too
	model, _ := v.Attribute(tidemill.AttrModel)
	version, _ := v.Attribute(tidemill.AttrModelVersion)
	if json.Unmarshal(v.Data, &d) != nil || version == "" {
		return ""
	}
	of, text := v.Type+" "+d.Scorer+" "+model, fmt.Sprintf("scorer %s  answers with %s@%s", d.Scorer, model, version)
	if v.Type == tidemill.TypeModelUnloadable {
		text = fmt.Sprintf("scorer %s  cannot load %s@%s: %s", d.Scorer, model, version, d.Error)
		if d.Kept != 0 {
			text += "; " + tidemill.VersionName(model, d.Kept) + " answers"
		}
	}
	if h.swaps[of] == text {
		return ""
	}
	if h.swaps == nil {
		h.swaps = map[string]string{}
	}
	h.swaps[of] = text
	return text
}
