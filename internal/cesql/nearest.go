package cesql

import "strings"

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
		if d := distance(word, k); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is how many letters must be added, dropped or changed.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := corner
			if a[i] != b[j] {
				changed++
			}
			corner = row[j+1]
			row[j+1] = min(changed, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
