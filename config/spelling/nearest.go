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
		if d := distance(strings.ToLower(word), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best, best != ""
}

// distance returns how many letters must be inserted, removed, replaced or swapped with a
// neighbour to change a into b.
func distance(a, b string) int {
	var before []int
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			replace := last[j]
			if a[i] != b[j] {
				replace++
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, replace)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
