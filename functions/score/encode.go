package score

import (
	"strconv"

	"tidemill.dev/internal/infer"
)

// appendScored writes the data of tidemill.scored as JSON: see Scored. Of top more
// than 0 it writes that many scores, the highest first, else all in the labels'
// order. What is no number is null.
func appendScored(dst []byte, a *infer.Answer, top int) []byte {
	if len(a.Scores) == 0 && a.Label == "" {
		return appendValues(dst, a.Values)
	}
	dst = append(dst, '{')
	if a.Label != "" {
		dst = append(dst, `"label":`...)
		dst = appendText(dst, a.Label)
		if i := scoreOf(a); i >= 0 {
			dst = append(dst, `,"score":`...)
			dst = appendScore(dst, a.Scores[i])
		}
	}
	if len(a.Scores) > 0 {
		if a.Label != "" {
			dst = append(dst, ',')
		}
		dst = append(dst, `"scores":`...)
		dst = appendScores(dst, a, top)
	}
	return append(dst, '}')
}

// scoreOf is the index of the label's score, -1 if it has none. A model that
// tells its label without saying which score is whose chose the highest.
func scoreOf(a *infer.Answer) int {
	i := below(a.Scores, -1)
	if a.Labels == nil || i >= 0 && i < len(a.Labels) && a.Labels[i] == a.Label {
		return i
	}
	for i = range min(len(a.Labels), len(a.Scores)) {
		if a.Labels[i] == a.Label {
			return i
		}
	}
	return -1
}

// below is the index of the highest score after another in the order of scores,
// the highest of all after -1; of equal ones the first comes first. -1 is none.
func below(scores []float32, after int) int {
	best := -1
	for i, s := range scores {
		if after >= 0 && (s > scores[after] || s == scores[after] && i <= after) {
			continue
		}
		if s == s && (best < 0 || s > scores[best]) {
			best = i
		}
	}
	return best
}

func appendScores(dst []byte, a *infer.Answer, top int) []byte {
	dst = append(dst, '{')
	if top <= 0 || top >= len(a.Scores) {
		for i := range a.Scores {
			dst = appendLabelled(dst, a, i)
		}
		return append(dst, '}')
	}
	for i := below(a.Scores, -1); i >= 0 && top > 0; top-- {
		dst = appendLabelled(dst, a, i)
		i = below(a.Scores, i)
	}
	return append(dst, '}')
}

func appendLabelled(dst []byte, a *infer.Answer, i int) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	if i < len(a.Labels) {
		dst = appendText(dst, a.Labels[i])
	} else {
		dst = append(dst, '"')
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, '"')
	}
	dst = append(dst, ':')
	return appendScore(dst, a.Scores[i])
}

func appendValues(dst []byte, values []float32) []byte {
	dst = append(dst, `{"values":[`...)
	for i, v := range values {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendValue(dst, v)
	}
	return append(dst, "]}"...)
}
