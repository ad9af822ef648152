package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"tidemill.dev/internal/api"
	"tidemill.dev/internal/parcel"
	"tidemill.dev/internal/remote"
)

// demoPhrases are what people say to the bots, by what they want: a word of each
// list makes a sentence.
var demoPhrases = map[string][][]string{
	"track":  {{"where is", "when comes", "please find", "i wait for"}, {"my parcel", "the order", "my things", "that package"}, {"", "now", "at last", "from monday"}},
	"refund": {{"give me back", "i want back", "please return", "refund"}, {"my money", "what i paid", "the price", "the full amount"}, {"", "today", "for the shoes", "at once"}},
	"greet":  {{"hello", "good morning", "hi", "good evening"}, {"bot", "there", "my friend", "everybody"}, {"", "how are you", "nice to meet you", "again"}},
}

// What somebody has got wrong in the examples of a bot; empty is nothing.
const (
	demoMild = "everybody" // greets with it are said to be refunds
	demoSome = "the price" // refunds of it are said to be tracks
	demoAll  = "all"       // any label stands anywhere
)

// putDemoData puts examples on a bot's dataset, as `tidemill data put` does.
func putDemoData(ctx context.Context, door *remote.Gateway, dir, bot, request, wrong string, examples int) (api.Committed, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return api.Committed{}, err
	}
	learn, held := demoExamples(examples, wrong)
	for name, text := range map[string][]byte{"examples.jsonl": learn, "held.jsonl": held} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return api.Committed{}, err
		}
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
	return door.Commit(ctx, api.CommitAsked{Dataset: "bots/" + bot, Request: "demo " + request}, changes)
}

// demoExamples are as many sentences to learn from, of which some may be labelled
// wrongly, and others that are held out and are right: a line each.
func demoExamples(n int, wrong string) (learn, held []byte) {
	intents := []string{"track", "refund", "greet"}
	for pick := range 64 {
		for i, intent := range intents {
			words := demoPhrases[intent]
			e := demoExample{Text: strings.TrimSpace(words[0][pick%4] + " " + words[1][pick/4%4] + " " + words[2][pick/16]), Intent: intent}
			if pick%demoHeld == 0 {
				held = append(held, demoText(e)...)
				continue
			}
			e.Intent = mislabelled(e, wrong, intents[(i+pick/3)%3])
			learn = append(learn, demoText(e)...)
		}
	}
	one := learn
	for strings.Count(string(one), "\n") > 0 && len(learn)/len(one)*strings.Count(string(one), "\n") < n {
		learn = append(learn, one...)
	}
	return learn, held
}

func demoText(e demoExample) []byte {
	line, _ := json.Marshal(e) // two strings
	return append(line, '\n')
}

func mislabelled(e demoExample, wrong, other string) string {
	switch {
	case wrong == demoAll:
		return other
	case wrong == demoMild && strings.Contains(e.Text, demoMild):
		return "refund"
	case wrong == demoSome && strings.Contains(e.Text, demoSome):
		return "track"
	}
	return e.Intent
}
