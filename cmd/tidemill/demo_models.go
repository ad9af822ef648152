package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/drawing"
	"tidemill.dev/internal/remote"
)

const demoLearnt = 3000 // examples

// demoStory is the part of the demo that tells of models.
type demoStory struct {
	door   *remote.Gateway
	folder string
	out    io.Writer
	screen screen
}

// playModels has models trained, judged, promoted and taken back.
func playModels(ctx context.Context, door *remote.Gateway, folder string, out io.Writer) error {
	d := &demoStory{door: door, folder: folder, out: out, screen: screenOf(out, func(string) string { return "" })}
	for _, part := range []func(context.Context) error{d.first, d.better, d.worse, d.back, d.why} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demoStory) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// first has each bot's first model made.
func (d *demoStory) first(ctx context.Context) error {
	d.say("\nThree bots get data. A commit is an event, and the recipe %s says what is made of it, and\nwhat a model must be to be promoted:", demoRecipe)
	began := time.Now()
	wrong := map[string]string{"bot-1": demoMild, "bot-3": demoAll}
	for _, bot := range demoBots {
		if err := d.put(ctx, bot, wrong[bot], map[string]string{demoMild: ", some of whose labels are wrong", demoAll: ", whose labels are all mixed up"}[wrong[bot]]); err != nil {
			return err
		}
	}
	if err := watchDemoRuns(ctx, d.door, d.out); err != nil {
		return err
	}
	for _, bot := range demoBots {
		want := tidemill.VersionPromoted
		if wrong[bot] == demoAll {
			want = tidemill.VersionRefused
		}
		if _, err := d.judged(ctx, bot, 1, want); err != nil {
			return err
		}
	}
	d.say("  three models made and judged, after %s in all", time.Since(began).Round(100*time.Millisecond))
	return nil
}

// better has a bot learn from data that was mended.
func (d *demoStory) better(ctx context.Context) error {
	d.say("\nSomebody mends the data of bot-1. Its next model is held against the champion, on the same\nexamples that neither has seen:")
	if err := d.put(ctx, "bot-1", "", ", mended"); err != nil {
		return err
	}
	_, err := d.judged(ctx, "bot-1", 2, tidemill.VersionPromoted)
	return err
}

// worse has it learn from data that was spoilt, so that the champion stays.
func (d *demoStory) worse(ctx context.Context) error {
	d.say("\nThen somebody spoils it: good enough for the first clause, and worse than what serves:")
	if err := d.put(ctx, "bot-1", demoSome, ", some of whose labels are wrong"); err != nil {
		return err
	}
	v, err := d.judged(ctx, "bot-1", 3, tidemill.VersionRefused)
	if err != nil {
		return err
	}
	one, err := d.door.Model(ctx, v.Model, fmt.Sprint(v.Number))
	if err != nil {
		return err
	}
	if len(one.All) == 1 && one.All[0].Measured != nil {
		showMeasured(indenter{d.out}, v.Number, one.All[0].Measured, screen{width: d.screen.width - 2, colours: d.screen.colours})
	}
	return nil
}

// back takes a promotion back, as one does at three in the morning.
func (d *demoStory) back(ctx context.Context) error {
	d.say("\nAt three in the morning somebody takes the last promotion back:")
	m, err := d.door.Model(ctx, "intent/bot-1", "")
	if err != nil {
		return err
	}
	done, err := d.door.Promote(ctx, tidemill.ActionRollback, api.PromotionAsked{Model: m.Name, Basis: &m.Champion, Reason: "a customer has complained"})
	if err != nil {
		return err
	}
	d.say("  %s %s", done.Model, done.Done)
	if done.Champion != 1 || done.Before != 2 {
		return fmt.Errorf("version %d of %s is the champion after a rollback from version %d", done.Champion, done.Model, done.Before)
	}
	return nil
}

// why tells where a model comes from.
func (d *demoStory) why(ctx context.Context) error {
	d.say("\nWhy is version 2 as it is?")
	g, err := d.door.Why(ctx, "model/intent/bot-1@2")
	if err != nil {
		return err
	}
	return drawing.Tree(indenter{d.out}, &g, seconds)
}

// put commits data of a bot, which is an event.
func (d *demoStory) put(ctx context.Context, bot, wrong, what string) error {
	c, err := putDemoData(ctx, d.door, filepath.Join(d.folder, bot), bot, bot+wrong, wrong, demoLearnt)
	if err != nil {
		return err
	}
	d.say("  %-6s commit %s on dataset %s%s", bot, short(c.ID), c.Dataset, what)
	return nil
}

// judged waits until a version has been judged, and shows the verdict.
func (d *demoStory) judged(ctx context.Context, bot string, number int, want tidemill.VersionState) (*api.ModelVersion, error) {
	name := "intent/" + bot
	t := time.NewTicker(demoGlance)
	defer t.Stop()
	for {
		m, err := d.door.Model(ctx, name, "")
		if err == nil && len(m.All) > 0 && m.All[0].Number == number && m.All[0].Judgement != nil && m.All[0].State != tidemill.VersionRegistered {
			return &m.All[0], d.verdict(&m.All[0], want)
		}
		if err != nil && remote.Status(err) != 404 {
			return nil, err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("version %d of %s is not judged: %w", number, name, context.Cause(ctx))
		}
	}
}

func (d *demoStory) verdict(v *api.ModelVersion, want tidemill.VersionState) error {
	d.say("  %s@%d %-9s %s", v.Model, v.Number, v.State, harmless(shortSentence(v)))
	if v.State != want {
		return fmt.Errorf("version %d of %s is %s, and has to be %s: %s", v.Number, v.Model, v.State, want, v.Judgement.Sentence)
	}
	return nil
}

// indenter writes each line two columns further to the right. What is written has
// whole lines.
type indenter struct{ out io.Writer }

func (i indenter) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		if line != "\n" {
			line = "  " + line
		}
		if _, err := io.WriteString(i.out, line); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}
