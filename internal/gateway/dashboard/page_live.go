package dashboard

import (
	"fmt"
	"strconv"
	"time"

	h "maragu.dev/gomponents/html"

	"tidemill.dev"
	"tidemill.dev/api"
)

// liveShown has the live figures of a model's versions.
type liveShown struct {
	All    []api.LiveFigures
	Model  string
	Chosen *api.LiveFigures // figures of the version that the page is about; nil if it has none
	Graph  graph            // accuracy of that version by day
}

func loadLive(v *visit) (*liveShown, error) {
	whole, err := askModel(v, "")
	if err != nil {
		return nil, err
	}
	l := liveShown{All: whole.Live, Model: whole.Name}
	chosen := whole.Which(chosen(v))
	for i := range l.All {
		if l.All[i].Version == chosen {
			l.Chosen = &l.All[i]
			l.Graph = liveGraph(l.Chosen)
			break
		}
	}
	return &l, nil
}

// liveGraph draws the accuracy of each day, and the accuracy that the gate judged.
func liveGraph(f *api.LiveFigures) graph {
	own, gate := curve{Name: "live accuracy"}, curve{Name: "the gate's accuracy"}
	for _, d := range f.Days {
		at, err := time.Parse(time.DateOnly, d.Day)
		if err != nil || d.Answers == 0 {
			continue
		}
		x := float64(at.Unix())
		own.Points = append(own.Points, point{x, float64(d.Right) / float64(d.Answers)})
		if f.Gate != nil {
			gate.Points = append(gate.Points, point{x, *f.Gate})
		}
	}
	return graph{Title: "Live accuracy by day", Sentence: "of version " + strconv.Itoa(f.Version) + " in scorer " + word(f.Scorer) + ", in UTC", Times: true, Curves: []curve{own, gate}}
}

func showLive(v *visit, l *liveShown) Node {
	if len(l.All) == 0 {
		return nil
	}
	parts := list(h.H2(say("Live")), liveTable(v, l.Model, l.All))
	f := l.Chosen
	if f == nil {
		return parts
	}
	matrices := confusionOf(&tidemill.Figures{Examples: f.Answers, Classes: f.Classes, Cells: f.Cells}, nil)
	if len(f.Days) > 1 {
		parts = list(parts, lineChart(l.Graph))
	}
	return list(parts, h.Div(h.Class("side even"), matrices.Own.node("Answers of version "+strconv.Itoa(f.Version)+" (rows: true, columns: answered)", true), calibration(f)))
}

// liveTable lists figures, each beside the accuracy that the gate judged.
func liveTable(v *visit, model string, all []api.LiveFigures) Node {
	return scroll("rows", heads("#Version", "Scorer", "#Answers", "#Live accuracy", "95 %", "#Gate", "Difference", "#Calibration error", "Last answer"), rows(each(all, func(f *api.LiveFigures) Node {
		gate, off := "?", "?"
		if f.Gate != nil {
			gate = number(*f.Gate)
		}
		if f.CalibrationError != nil {
			off = number(*f.CalibrationError)
		}
		return row(strconv.Itoa(f.Version)+" "+f.Scorer, h.Th(h.Scope("row"), h.Class("num"), modelLink(model, f.Version)), cell(scorerLink(f.Scorer)), figure(say(count(f.Answers))),
			figure(say(number(f.Accuracy.Value))), cell(say(number(f.Accuracy.Low)+" to "+number(f.Accuracy.High))), figure(say(gate)), cell(say(titled(f.Sentence))), figure(say(off)), cell(v.ago(f.Last)))
	})))
}

// calibration compares the scores with the shares of right answers.
func calibration(f *api.LiveFigures) Node {
	if len(f.Bins) == 0 {
		return nil
	}
	return scroll("narrow", h.Caption(say("Calibration: a score should be the share of right answers")), heads("Score", "#Answers", "#Mean score", "#Right"), rows(each(f.Bins, func(b *api.LiveBin) Node {
		if b.Answers == 0 {
			return nil
		}
		return h.Tr(rowName(say(fmt.Sprintf("%.1f to %.1f", b.From, b.To))), figure(say(count(b.Answers))), figure(say(number(b.Score))), figure(say(percent(float64(b.Right), float64(b.Answers)))))
	})))
}

// keyLive has the live figures of one of a key's models.
type keyLive struct {
	Model string
	Live  []api.LiveFigures
}

func loadKeyLive(v *visit) ([]keyLive, error) {
	models, err := modelsOfKey(v)
	if err != nil {
		return nil, err
	}
	var all []keyLive
	for i := range models {
		whole, err := get[api.ModelWhole](v, "/api/v1/model", map[string][]string{"model": {models[i].Name}})
		if err != nil && !isNotFound(err) {
			return nil, err
		}
		if len(whole.Live) > 0 {
			all = append(all, keyLive{models[i].Name, whole.Live})
		}
	}
	return all, nil
}

func showKeyLive(v *visit, all []keyLive) Node {
	if len(all) == 0 {
		return nil
	}
	return list(h.H2(say("Live")), each(all, func(k *keyLive) Node { return list(h.P(modelLink(k.Model, 0)), liveTable(v, k.Model, k.Live)) }))
}
