package remote

import (
	"bytes"
	"testing"

	"tidemill.dev/internal/scoring/infer"
)

func TestAnswersInWords(t *testing.T) {
	t.Parallel()
	for want, a := range map[string]infer.Answer{
		"a  a 0.75  b 0.25":         {Label: "a", Labels: []string{"a", "b"}, Scores: []float32{0.75, 0.25}},
		"1.5  2":                    {Values: []float32{1.5, 2}},
		"x":                         {Label: "x"},
		"c  0  1  2  3  4  …":       {Label: "c", Scores: []float32{0, 1, 2, 3, 4, 5, 6}},
		"c  0.5  0.25  0.125  0  1": {Label: "c", Scores: []float32{0.5, 0.25, 0.125, 0, 1}},
	} {
		if got := answerText(&a); got != want {
			t.Errorf("%+v is %q", a, got)
		}
	}
}

func TestEachChangeIsToldOnce(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	c := changes{out: &b}
	for _, text := range []string{"", "a", "a", "", "b\x1b", "a"} {
		c.tell(text)
	}
	if got := b.String(); got != "progress: a\nprogress: b·\nprogress: a\n" {
		t.Errorf("told are %q", got)
	}
}
