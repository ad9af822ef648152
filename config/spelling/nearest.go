package spelling

import "strings"

// maxLetters bounds the number of errors that are accepted in a long word.
const maxLetters = 60

// Nearest returns the known word that is closest to a given one, if at most a third
// of the letters differ. Upper and lower case are the same.
func Nearest(word string, known []string) (string, bool) {
	best, least := "", 1+max(1, min(len(word), maxLetters)/3)
	for _, k := range known {
		if len(word)-len(k) >= least || len(k)-len(word) >= least {
			continue
		}
		if d := Distance(strings.ToLower(word), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best, best != ""
}
