package cesql

import (
	"strings"

	"tidemill.dev/internal/spelling"
)

// didYouMean is a question to put behind an unknown word, or nothing.
func didYouMean(word string, known []string) string {
	if k := nearest(word, known); k != "" {
		return "; did you mean " + k + "?"
	}
	return ""
}

// nearest is the known word, in capitals, that another may be a slip of: at most
// a third of its letters differ. Empty is none.
func nearest(word string, known []string) (best string) {
	word = strings.ToUpper(word)
	least := max(len(word)/3, 1) + 1
	for _, k := range known {
		if d := spelling.Distance(word, k); d < least {
			best, least = k, d
		}
	}
	return best
}
