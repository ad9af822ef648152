package dashboard

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// outcome is the answer to an action, or to its dry run.
type outcome struct {
	Sentence string
	Rows     []outcomeRow
	Next     string // cursor for the rest; empty if the answer is complete
	Undo     string // action that undoes this; empty if none does
	UndoWith url.Values
	More     *actionLink // action with which a person continues; nil if there is none
}

// outcomeRow is the result for one object.
type outcomeRow struct {
	Name, URL string
	Says      string
	Refused   bool
}

func readAs[T any](body []byte) (answer T, err error) {
	if err := json.Unmarshal(body, &answer); err != nil {
		return answer, fmt.Errorf("read the answer of the API: %w", err)
	}
	return answer, nil
}

// readChanged reads the answer to an action that may have had no effect.
func readChanged(body []byte, done, same string) (outcome, error) {
	answer, err := readAs[struct {
		Changed *bool `json:"changed"`
	}](body)
	switch {
	case err != nil:
		return outcome{}, err
	case answer.Changed != nil && !*answer.Changed:
		return outcome{Sentence: same}, nil
	}
	return outcome{Sentence: "It is " + done + "."}, nil
}

// readRuns reads the answer to an action on runs. The action undo concerns the runs of the answer.
func readRuns(undo string) func([]byte) (outcome, error) {
	return func(body []byte) (outcome, error) {
		done, err := readAs[api.RunsDone](body)
		if err != nil {
			return outcome{}, err
		}
		o := outcome{Next: done.Next, UndoWith: url.Values{}}
		changed := 0
		for _, r := range done.Runs {
			row := outcomeRow{Name: r.Recipe + " " + r.Key, Says: r.Done, Refused: r.Refused}
			if r.Run != "" {
				row.URL = runURL(r.Run)
			}
			if !r.Refused {
				changed++
				if r.Run != "" {
					o.UndoWith.Add("run", r.Run)
				}
			}
			o.Rows = append(o.Rows, row)
		}
		o.Sentence = fmt.Sprintf("%s of %s runs.", count(changed), count(len(done.Runs)))
		if n := len(o.UndoWith["run"]); n > 0 && n <= mostUndone {
			o.Undo = undo
		}
		return o, nil
	}
}

// mostUndone is the number of runs whose ids fit into an address.
const mostUndone = 100

// readPromotion reads the answer to an action on one model.
func readPromotion(undo string) func([]byte) (outcome, error) {
	return func(body []byte) (outcome, error) {
		done, err := readAs[api.PromotionDone](body)
		if err != nil {
			return outcome{}, err
		}
		o := outcome{Sentence: done.Done, Rows: []outcomeRow{promotionRow(done)}}
		if !done.Refused {
			whole := tidemill.WholeName(done.Model)
			target := whole
			if undo != "unpin" && done.Before > 0 && done.Before != done.Champion { // an unpin is for the whole model
				target = tidemill.VersionName(done.Model, done.Before)
			}
			if target != whole || undo != "rollback" {
				o.Undo, o.UndoWith = undo, url.Values{"model": {target}}
			}
		}
		return o, nil
	}
}

// readRefusal offers a promotion by force to undo the refusal.
func readRefusal(body []byte) (outcome, error) {
	done, err := readAs[api.PromotionDone](body)
	if err != nil {
		return outcome{}, err
	}
	return outcome{Sentence: done.Done, Rows: []outcomeRow{promotionRow(done)}, Undo: "promote",
		UndoWith: url.Values{"model": {tidemill.WholeName(done.Model)}, "version": {strconv.Itoa(done.Version)}, "force": {"true"}}}, nil
}

func promotionRow(d api.PromotionDone) outcomeRow {
	return outcomeRow{Name: d.Model, URL: modelURL(d.Model), Says: fmt.Sprintf("%s (champion before: %s, after: %s)", d.Done, versionWord(d.Before), versionWord(d.Champion)), Refused: d.Refused}
}

func versionWord(n int) string {
	if n == 0 {
		return "none"
	}
	return strconv.Itoa(n)
}

// readRollout reads the answer to a change of a rollout. The action undo undoes it.
func readRollout(undo string) func([]byte) (outcome, error) {
	return func(body []byte) (outcome, error) {
		done, err := readAs[api.Rested](body)
		if err != nil {
			return outcome{}, err
		}
		o := outcome{Sentence: done.Done + "."}
		if done.Changed {
			o.Undo, o.UndoWith = undo, url.Values{"recipe": {done.Name}}
		}
		return o, nil
	}
}

func readPromotions(body []byte) (outcome, error) {
	done, err := readAs[api.PromotionsDone](body)
	if err != nil {
		return outcome{}, err
	}
	o := outcome{Next: done.Next}
	changed := 0
	for _, d := range done.Models {
		if !d.Refused {
			changed++
		}
		o.Rows = append(o.Rows, promotionRow(d))
	}
	o.Sentence = fmt.Sprintf("%s of %s models whose champion has changed since then.", count(changed), count(len(done.Models)))
	return o, nil
}

func readLetters(body []byte) (outcome, error) {
	done, err := readAs[api.LetterDone](body)
	if err != nil {
		return outcome{}, err
	}
	o := outcome{Sentence: fmt.Sprintf("%s of %s selected dead letters.", count(len(done.Letters)), count(done.Matched))}
	if done.Replaying > 0 {
		o.Sentence += fmt.Sprintf(" %s are being replayed already.", count(done.Replaying))
	}
	if done.Left > 0 {
		o.Sentence += fmt.Sprintf(" %s are left for another request: repeat it.", count(done.Left))
	}
	for _, id := range done.Letters {
		o.Rows = append(o.Rows, outcomeRow{Name: id, URL: letterURL(id)})
	}
	for _, g := range done.Refused {
		o.Rows = append(o.Rows, outcomeRow{Name: count(g.Count) + " dead letters", Says: g.Reason, Refused: true})
	}
	return o, nil
}

func readReplay(body []byte) (outcome, error) {
	done, err := readAs[api.ReplayDone](body)
	if err != nil {
		return outcome{}, err
	}
	o := outcome{Sentence: fmt.Sprintf("%s events in the range.", count(done.Records))}
	if p := done.Preview; p != nil {
		o.Sentence += fmt.Sprintf(" %s of %s read events match.", count(p.Matched), count(p.Read))
		if !p.Complete {
			o.Sentence += " More were not read in time."
		}
	}
	for _, s := range done.Range {
		o.Rows = append(o.Rows, outcomeRow{Name: fmt.Sprintf("%s/%d", s.Stream, s.Partition), Says: fmt.Sprintf("offsets %d to %d", s.From, s.To-1)})
	}
	return o, nil
}

func readPublished(body []byte) (outcome, error) {
	if len(body) == 0 {
		return outcome{Sentence: "The event is stored."}, nil
	}
	p, err := readAs[api.Position](body)
	if err != nil || p.Stream == "" {
		return outcome{Sentence: "The event is stored."}, err
	}
	return outcome{Sentence: fmt.Sprintf("The event is stored at %s/%d/%d.", p.Stream, p.Partition, p.Offset)}, nil
}

func readLabel(body []byte) (outcome, error) {
	done, err := readAs[api.LabelDone](body)
	if err != nil {
		return outcome{}, err
	}
	return outcome{Sentence: fmt.Sprintf("The truth is %s, by your label %s/%d/%d. If the event was answered, the outcome follows within seconds; another label corrects it.", word(done.Truth), done.At.Stream, done.At.Partition, done.At.Offset),
		More: &actionLink{Title: "Give another one…", URL: "again=1"}}, nil
}

func readRescore(body []byte) (outcome, error) {
	done, err := readAs[api.Rescored](body)
	if err != nil {
		return outcome{}, err
	}
	o := outcome{Sentence: fmt.Sprintf("%s events scored, %s without a score, %s of %s left.", count(done.Scored), count(done.Unscored), count(done.Left), count(done.Records))}
	for at, reason := range done.Reasons {
		o.Rows = append(o.Rows, outcomeRow{Name: at, Says: reason, Refused: true})
	}
	if done.Deleted > 0 {
		o.Sentence += fmt.Sprintf(" Retention has deleted %s.", count(done.Deleted))
	}
	if done.Since != nil {
		o.Sentence += " Retention may have deleted events before " + done.Since.UTC().Format(time.RFC3339) + "."
	}
	if done.Left > 0 {
		o.More = &actionLink{Title: "Continue…", URL: "resume=" + url.QueryEscape(done.ID)}
	}
	return o, nil
}

func readForget(body []byte) (outcome, error) {
	done, err := readAs[api.KeyEnd](body)
	if err != nil || done.Receipt == nil {
		return outcome{Sentence: "It is requested."}, err
	}
	r := done.Receipt
	o := outcome{Sentence: fmt.Sprintf("%s dead letters.", count(r.Letters))}
	for _, g := range r.Runs {
		o.Rows = append(o.Rows, outcomeRow{Name: "recipe " + g.Recipe, Says: count(len(g.Runs)) + " runs"})
	}
	for _, m := range r.Models {
		o.Rows = append(o.Rows, outcomeRow{Name: "model " + m.Model, Says: count(m.Versions) + " versions"})
	}
	for _, d := range r.Datasets {
		o.Rows = append(o.Rows, outcomeRow{Name: "dataset " + d.Dataset, Says: count(d.Commits) + " commits"})
	}
	for _, left := range r.Remains {
		o.Rows = append(o.Rows, outcomeRow{Name: "remains in " + left.Place, Says: left.What + "; " + left.Ends})
	}
	return o, nil
}

func readBranch(body []byte) (outcome, error) {
	done, err := readAs[api.Branched](body)
	if err != nil {
		return outcome{}, err
	}
	o := outcome{Sentence: "The branch begins at commit " + word(done.Commit.ID) + "."}
	if !done.Changed {
		o.Sentence = "The branch was there at this commit: nothing has changed."
	}
	return o, nil
}

func readCollected(body []byte) (outcome, error) {
	done, err := readAs[api.Collected](body)
	if err != nil {
		return outcome{}, err
	}
	return outcome{Sentence: fmt.Sprintf("%s of %s objects are unused: %s of %s.", count(done.Removed), count(done.Objects), size(done.Freed), size(done.Bytes))}, nil
}
