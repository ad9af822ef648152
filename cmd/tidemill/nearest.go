package main

import (
	"strings"

	"tidemill.dev/internal/spelling"
)

// didYouMean is a question to put behind an unknown word, or nothing.
func didYouMean(word string, known []string) string {
	if n, ok := nearest(word, known); ok {
		return " did you mean " + n + "?"
	}
	return ""
}

// nearest is the known word that another may be a slip of: it begins so, or at
// most a third of its letters differ.
func nearest(word string, known []string) (string, bool) {
	best, least := "", max(len(word)/3, 1)+1
	for _, k := range known {
		if len(word) > 1 && strings.HasPrefix(k, word) {
			return k, true
		}
		if d := spelling.Distance(word, k); d < least {
			best, least = k, d
		}
	}
	return best, best != ""
}
