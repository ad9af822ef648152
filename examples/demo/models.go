package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

var bots = []string{"bot-1", "bot-2", "bot-3"}

// sentenceParts are the parts of sentences that customers write to the bots, by intent. One part of
// each list makes a sentence.
var sentenceParts = map[string][3][4]string{
	"track":  {{"where is", "when comes", "please find", "i wait for"}, {"my parcel", "the order", "my things", "that package"}, {"", "now", "at last", "from monday"}},
	"refund": {{"give me back", "i want back", "please return", "refund"}, {"my money", "what i paid", "the price", "the full amount"}, {"", "today", "for the shoes", "at once"}},
	"greet":  {{"hello", "good morning", "hi", "good evening"}, {"bot", "there", "my friend", "everybody"}, {"", "how are you", "nice to meet you", "again"}},
}

var intents = []string{"track", "refund", "greet"}

// sentence returns the nth of the 64 sentences of an intent.
func sentence(intent string, n int) string { return sentenceOf(sentenceParts[intent], n) }

func sentenceOf(words [3][4]string, n int) string {
	return strings.TrimSpace(words[0][n%4] + " " + words[1][n/4%4] + " " + words[2][n/16%4])
}

// These mistakes may be in the data of a bot: wrong labels for the sentences with these words.
const (
	fewWrong  = "everybody" // sentences of greet, labelled refund
	someWrong = "the price" // sentences of refund, labelled track
	allWrong  = ""          // all sentences, with any label
	noneWrong = "none"
)

// putExamples writes the examples of a bot and commits them. The event of the commit starts a run.
func (d *demo) putExamples(ctx context.Context, bot, wrong string) error {
	return d.putExamplesOf(ctx, "bots/"+bot, bot, wrong)
}

func (d *demo) putExamplesOf(ctx context.Context, dataset, bot, wrong string) error {
	dir := filepath.Join(d.dir, "data", bot)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var learn, held strings.Builder
	for n := range 64 {
		for i, intent := range intents {
			e := labelledSentence{Text: sentence(intent, n), Intent: intent}
			to := &learn
			switch {
			case n%5 == 0:
				to = &held
			case wrong == allWrong:
				e.Intent = intents[(i+n/3)%3]
			case strings.Contains(e.Text, wrong):
				e.Intent = map[string]string{fewWrong: "refund", someWrong: "track"}[wrong]
			}
			line, _ := json.Marshal(e) // two strings cannot fail
			to.Write(append(line, '\n'))
		}
	}
	for name, text := range map[string]string{"examples.jsonl": strings.Repeat(learn.String(), 20), "held.jsonl": held.String()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	_, err := d.show(ctx, "data", "put", dataset, "data/"+bot)
	return err
}

// models trains models, which are judged, promoted, refused and rolled back.
func (d *demo) models(ctx context.Context) error {
	began := time.Now()
	d.say("\nThree bots get data. The recipe intents trains a model from each, and its gate judges the models.\nSome labels of bot-1 are wrong, and all of bot-3:")
	for _, bot := range bots {
		wrong := map[string]string{"bot-1": fewWrong, "bot-2": noneWrong, "bot-3": allWrong}[bot]
		if err := d.putExamples(ctx, bot, wrong); err != nil {
			return err
		}
	}
	if err := d.watch(ctx); err != nil {
		return err
	}
	for _, bot := range bots {
		if err := d.waitJudged(ctx, bot, 1, map[string]string{"bot-1": "promoted", "bot-2": "promoted", "bot-3": "refused"}[bot]); err != nil {
			return err
		}
	}
	d.say("  three models trained and judged, after %s in all", time.Since(began).Round(100*time.Millisecond))

	d.say("\nThe data of bot-1 is repaired. The next model is compared with the champion on the same examples:")
	if err := d.putExamples(ctx, "bot-1", noneWrong); err != nil {
		return err
	}
	if err := d.waitJudged(ctx, "bot-1", 2, "promoted"); err != nil {
		return err
	}
	d.say("\nOther labels of bot-1 become wrong. The next model is worse than the champion:")
	if err := d.putExamples(ctx, "bot-1", someWrong); err != nil {
		return err
	}
	if err := d.waitJudged(ctx, "bot-1", 3, "refused"); err != nil {
		return err
	}
	if _, err := d.show(ctx, "models", "show", "intent/bot-1@3"); err != nil {
		return err
	}
	d.say("\nThe last promotion is rolled back:")
	out, err := d.show(ctx, "rollback", "intent/bot-1", "--reason", "a customer has complained")
	if err == nil && !strings.Contains(out, "version 1") {
		err = fmt.Errorf("the rollback answered: %s", out)
	}
	if err != nil {
		return err
	}
	d.say("\nThe origin of version 2:")
	_, err = d.show(ctx, "why", "model/intent/bot-1@2")
	return err
}

// watch shows the progress of the first runs until all have ended.
func (d *demo) watch(ctx context.Context) error {
	last := ""
	return pollUntil(ctx, "the runs have not ended", func() (bool, error) {
		var page struct {
			Runs []struct {
				Key, State, Reason string
				Progress           *struct {
					Step, Total float64
					Metrics     map[string]float64
				}
			}
		}
		if err := d.get(ctx, "runs?recipe=intents", &page); err != nil {
			return false, err
		}
		states, ended := map[string]string{}, 0
		for _, r := range page.Runs {
			states[r.Key] = r.State
			switch {
			case r.State == "failed":
				return false, fmt.Errorf("the run of %s has failed: %s", r.Key, r.Reason)
			case r.State == "succeeded":
				ended++
			case r.Progress != nil:
				states[r.Key] += fmt.Sprintf(" %.0f/%.0f, loss %.3f", r.Progress.Step, r.Progress.Total, r.Progress.Metrics["loss"])
			}
		}
		line := ""
		for _, bot := range bots {
			line += fmt.Sprintf("%-34s", bot+" "+states[bot])
		}
		if line = strings.TrimSpace(line); line != last {
			d.say("  %s", line)
			last = line
		}
		return ended == len(bots), nil
	})
}

// waitJudged waits until a version has been judged, and shows the verdict.
func (d *demo) waitJudged(ctx context.Context, bot string, number int, want string) error {
	return pollUntil(ctx, fmt.Sprintf("version %d of %s was not judged", number, bot), func() (bool, error) {
		var model struct {
			All []struct {
				Number    int
				State     string
				Judgement *struct{ Sentence string }
			}
		}
		if err := d.get(ctx, "model?model="+url.QueryEscape("intent/"+bot), &model); err != nil {
			return false, err
		}
		if len(model.All) == 0 || model.All[0].Number != number || model.All[0].Judgement == nil || model.All[0].State == "registered" {
			return false, nil
		}
		v := model.All[0]
		d.say("  intent/%s@%d %-9s %s", bot, number, v.State, strings.TrimPrefix(v.Judgement.Sentence, fmt.Sprintf("version %d of intent/%s ", number, bot)))
		if v.State != want {
			return false, fmt.Errorf("version %d of intent/%s is %s; the demo expects %s", number, bot, v.State, want)
		}
		return true, nil
	})
}
