package remote

import (
	"fmt"
	"io"
	"strings"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/cli/show"
)

// mostDays is the number of days that are shown.
const mostDays = 7

// showLive prints how good the answers of the versions were in the scorers. Of one version it prints the
// confusion, the calibration and the last days.
func showLive(w io.Writer, look lookedAt, all bool, s show.Screen) error {
	for i := range look.model.Live {
		l := &look.model.Live[i]
		own := look.version != nil && l.Version == look.version.Number
		if !all && !own {
			continue
		}
		fmt.Fprintf(w, "\nLive, version %d in scorer %s: %s\n", l.Version, show.Harmless(l.Scorer), show.Harmless(l.Sentence))
		if !own {
			continue
		}
		if err := showLiveVersion(w, l, s); err != nil {
			return err
		}
	}
	return nil
}

func showLiveVersion(w io.Writer, l *api.LiveFigures, s show.Screen) error {
	said := []string{fmt.Sprintf("95%%: %s to %s", figure(l.Accuracy.Low), figure(l.Accuracy.High))}
	if l.CalibrationError != nil {
		said = append(said, "calibration error "+figure(*l.CalibrationError))
	}
	if l.Assumed > 0 {
		said = append(said, show.Thousands(int64(l.Assumed))+" without a label")
	}
	if l.Corrected > 0 {
		said = append(said, show.Count(l.Corrected, "correction"))
	}
	fmt.Fprintln(w, strings.Join(said, "; "))
	rows := [][]string{{"DAY", "ANSWERS", "RIGHT"}}
	for _, d := range l.Days[max(0, len(l.Days)-mostDays):] {
		rows = append(rows, []string{show.Harmless(d.Day), show.Thousands(int64(d.Answers)), percent(float64(d.Right) / float64(max(d.Answers, 1)))})
	}
	if err := show.Table(w, rows); err != nil {
		return err
	}
	f := &tidemill.Figures{Examples: l.Answers, Accuracy: l.Accuracy, Classes: l.Classes, Cells: l.Cells}
	d := drawMatrix(fmt.Sprintf("version %d, live", l.Version), f, s)
	for i, line := range d.lines {
		if i == 0 {
			fmt.Fprintln(w, "\nConfusion matrix (rows: true, columns: answered):")
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
	return nil
}
