package gate

import (
	"strings"

	"tidemill.dev/internal/spelling"
)

const maxSlip = 60 // letters

// nearest is the known name that a given one is a slip of the hand of: at most
// a third of its letters differ.
func nearest(name string, known []string) (string, bool) {
	best, least := "", 1+max(1, min(len(name), maxSlip)/3)
	for _, k := range known {
		if len(name)-len(k) >= least || len(k)-len(name) >= least {
			continue
		}
		if d := spelling.Distance(strings.ToLower(name), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best, best != ""
}

// maxBrief bounds how much of a text that others have written is repeated.
const maxBrief = 120

// brief is a text on one line, cut.
func brief(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > maxBrief {
		return string(r[:maxBrief]) + "…"
	}
	return text
}
