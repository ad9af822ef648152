package web

import (
	"fmt"
	"net/http"

	"tidemill.dev"
	"tidemill.dev/internal/api"
)

// The problems of attempts.

// supersededBy says what became of an attempt, or of its run.
func supersededBy(b bearer) *api.Problem {
	return problem(api.Superseded, http.StatusConflict, "the attempt counts no more",
		fmt.Sprintf("attempt %s: %s; end its command and leave, nothing it says is taken any more", clip(b.name), whyNotUnderWay(b.run, b.number)))
}

// whyNotUnderWay tells from a run why one of its attempts is not the one under
// way.
func whyNotUnderWay(run *tidemill.Run, number int) string {
	text := "it has not begun"
	if a, ok := attemptOf(run, number); ok && !a.Ended.IsZero() {
		text = "it has ended, " + string(a.Outcome)
		if a.Reason != "" {
			text += ": " + a.Reason
		}
	}
	if now := run.Attempt(); now != nil {
		return fmt.Sprintf("%s, and attempt %d is under way", text, now.Number)
	}
	return fmt.Sprintf("%s, and its run is %s", text, run.State)
}

func tooManySteps() *api.Problem {
	return problem(api.TooManyRequests, http.StatusTooManyRequests, "too much at once",
		fmt.Sprintf("an attempt may tell %d lines of progress a second, and %d at once: keep the newest and send it again a little later", api.StepsASec, api.MaxSteps))
}
