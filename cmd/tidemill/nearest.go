package main

import "strings"

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
		if d := distance(word, k); d < least {
			best, least = k, d
		}
	}
	return best, best != ""
}

// distance is how many letters must be added, dropped, changed or swapped with
// their neighbour.
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			changed := d[i-1][j-1]
			if a[i-1] != b[j-1] {
				changed++
			}
			d[i][j] = min(changed, d[i-1][j]+1, d[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
