package evaluate

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"tidemill.dev"
)

// Names of the metrics that Tidemill computes. The same names in metrics.json are claims.
const (
	MetricAccuracy = "accuracy"
	MetricMacroF1  = "macroF1"
	MetricExamples = "examples"

	// ofChampion is the prefix of a trainer's figures of the champion.
	ofChampion = "champion."
	// leastDifference is the least difference that rounding does not explain.
	leastDifference = 0.001
)

// Report combines the counted predictions with the trainer's figures. champion is the version that
// the run was given, 0 for none; err is why predictions.csv could not be counted, which is noted.
// For a run without that file, p and err are nil.
func Report(p *Predictions, err error, claimed map[string]float64, champion int) tidemill.Report {
	d := draft{r: tidemill.Report{Metrics: map[string]float64{}, Claimed: map[string]float64{}}}
	theirs := d.addClaims(claimed)
	if err != nil {
		d.note("%s", reasonText(err))
	}
	if p != nil && p.Own != nil {
		d.r.Measured = p.Own
		d.r.Notes = append(d.r.Notes, p.Notes...)
		d.overlayFigures(d.r.Metrics, "", p.Own)
	}
	d.addChampion(p, theirs, champion)
	if len(d.r.Claimed) == 0 {
		d.r.Claimed = nil
	}
	return d.r
}

// reasonText returns the text of an error, or only the text of the FileError in it.
func reasonText(err error) string {
	var file *FileError
	if errors.As(err, &file) {
		return file.Error()
	}
	return err.Error()
}

// draft is an unfinished report.
type draft struct{ r tidemill.Report }

func (d *draft) note(format string, args ...any) {
	d.r.Notes = append(d.r.Notes, fmt.Sprintf(format, args...))
}

// addClaims adds the trainer's figures of its own version, and returns the trainer's figures of the
// champion.
func (d *draft) addClaims(all map[string]float64) (theirs map[string]float64) {
	theirs = map[string]float64{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		value := all[name]
		rest, isTheirs := strings.CutPrefix(name, ofChampion)
		switch {
		case math.IsNaN(value) || math.IsInf(value, 0):
			d.note("%s of metrics.json is %v, which is not finite, and is left out", name, value)
		case isTheirs:
			theirs[rest] = value
		default:
			d.r.Metrics[name] = value
		}
	}
	return theirs
}

// overlayFigures replaces claims by our figures of the same names, and keeps the claims that differ.
func (d *draft) overlayFigures(metrics map[string]float64, prefix string, f *tidemill.Figures) {
	for _, ours := range []struct {
		name  string
		value float64
	}{{MetricAccuracy, f.Accuracy.Value}, {MetricMacroF1, f.MacroF1.Value}, {MetricExamples, float64(f.Examples)}} {
		if was, is := metrics[ours.name]; is && math.Abs(was-ours.value) > leastDifference {
			d.r.Claimed[prefix+ours.name] = was
			d.note("metrics.json says that %s is %v; by %s it is %v, which counts", prefix+ours.name, was, FileName, math.Round(ours.value*1e6)/1e6)
		}
		metrics[ours.name] = ours.value
	}
}

// addChampion adds the run's measurements of the champion that it was given.
func (d *draft) addChampion(p *Predictions, theirs map[string]float64, champion int) {
	counted := p != nil && p.Champion != nil
	switch {
	case champion == 0 && (counted || len(theirs) > 0):
		d.note("the run was given no champion, so its figures of one do not count")
	case champion == 0:
	case !counted && len(theirs) == 0:
		d.note("the run was given version %d, the champion, and has not measured it: %s has no answers in a column champion, and metrics.json no object champion", champion, FileName)
	default:
		d.r.Champion = &tidemill.Beside{Version: champion, Metrics: theirs}
		if counted {
			d.r.Champion.Measured, d.r.Champion.Lead = p.Champion, p.Lead
			d.overlayFigures(theirs, ofChampion, p.Champion)
		}
	}
}
