package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/parcel"
	"tidemill.dev/internal/remote"
)

// demoBots are created and have a model trained each.
var demoBots = [...]string{"bot-1", "bot-2", "bot-3"}

// demoPhrases are what people say to the bots, by what they want: a word of each
// list makes a sentence.
var demoPhrases = map[string][][]string{
	"track":  {{"where is", "when comes", "please find", "i wait for"}, {"my parcel", "the order", "my things", "that package"}, {"", "now", "at last", "from monday"}},
	"refund": {{"give me back", "i want back", "please return", "refund"}, {"my money", "what i paid", "the price", "the full amount"}, {"", "today", "for the shoes", "at once"}},
	"greet":  {{"hello", "good morning", "hi", "good evening"}, {"bot", "there", "my friend", "everybody"}, {"", "how are you", "nice to meet you", "again"}},
}

// playRuns creates bots, whose data is there, and shows their models being
// trained.
func playRuns(ctx context.Context, door *remote.Gateway, folder string, out io.Writer) error {
	fmt.Fprintf(out, "\nThree bots are created. Each has data, and the recipe %s says how its model is made:\n", demoRecipe)
	began := time.Now()
	for i, bot := range demoBots {
		c, err := putDemoData(ctx, door, filepath.Join(folder, bot), bot, 6000*(i+1))
		if err != nil {
			return err
		}
		v := broker.View{ID: tidemill.ID("demo", "runs", bot), Source: "/demo", Type: tidemill.TypeBotCreated, Subject: bot,
			Time: time.Now().UTC().Format(time.RFC3339Nano)}
		if _, err := door.Publish(ctx, "", &v); err != nil {
			return err
		}
		fmt.Fprintf(out, "  %-6s dataset %s, commit %s; bot-created is published\n", bot, c.Dataset, short(c.ID))
	}
	all, err := watchDemoRuns(ctx, door, out)
	if err != nil {
		return err
	}
	for i := range all {
		if err := showDemoRun(&all[i], out); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "  each bot has exactly one run, after %s in all\n", time.Since(began).Round(time.Millisecond*100))
	return nil
}

// putDemoData puts examples on a bot's dataset, as `tidemill data put` does.
func putDemoData(ctx context.Context, door *remote.Gateway, dir, bot string, examples int) (api.Committed, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return api.Committed{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, "examples.jsonl"), demoExamples(examples), 0o644); err != nil {
		return api.Committed{}, err
	}
	nobody := func(int, int64) {}
	files, err := parcel.Scan(ctx, dir, nobody)
	if err != nil {
		return api.Committed{}, err
	}
	if err := door.Carrier().Put(ctx, dir, files, nobody); err != nil {
		return api.Committed{}, err
	}
	changes := make([]api.Change, len(files))
	for i, f := range files {
		changes[i].File = f
	}
	return door.Commit(ctx, api.CommitAsked{Dataset: "bots/" + bot, Request: "demo-" + bot}, changes)
}

// demoExamples are as many sentences, a line each.
func demoExamples(n int) []byte {
	var b strings.Builder
	for i := range n {
		intent := []string{"track", "refund", "greet"}[i%3]
		words := demoPhrases[intent]
		pick := i / 3
		text := words[0][pick%4] + " " + words[1][pick/4%4] + " " + words[2][pick/16%4]
		line, _ := json.Marshal(demoExample{Text: text, Intent: intent}) // two strings
		b.Write(append(line, '\n'))
	}
	return []byte(b.String())
}

const demoGlance = 250 * time.Millisecond

// watchDemoRuns shows a line each time that something has come on, until all
// have ended.
func watchDemoRuns(ctx context.Context, door *remote.Gateway, out io.Writer) ([]api.RunShown, error) {
	t := time.NewTicker(demoGlance)
	defer t.Stop()
	for last := ""; ; {
		page, err := door.Runs(ctx, remote.RunQuery{Recipe: demoRecipe})
		if err != nil {
			return nil, err
		}
		line, ended := demoLine(page.Runs)
		if line != last {
			fmt.Fprintf(out, "  %s\n", line)
			last = line
		}
		if ended == len(demoBots) {
			return page.Runs, nil
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("the runs have not ended: %s: %w", line, context.Cause(ctx))
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

func showDemoRun(r *api.RunShown, out io.Writer) error {
	if r.State != tidemill.RunSucceeded || r.Result == nil {
		return fmt.Errorf("run %s of %s has %s: %s", r.ID, r.Key, r.State, r.Reason)
	}
	_, err := fmt.Fprintf(out, "  %-6s run %s: accuracy %.3f on what was held out; %d files made, in tree %s\n", r.Key, short(r.ID), r.Result.Metrics["accuracy"], r.Result.Files, short(r.Result.Artifact))
	return err
}
