package spelling

import "testing"

func TestDistance(t *testing.T) {
	for words, want := range map[[2]string]int{
		{"", ""}: 0, {"a", ""}: 1, {"", "ab"}: 2, {"gate", "gate"}: 0, {"gat", "gate"}: 1, {"gatte", "gate"}: 1, {"gare", "gate"}: 1,
		{"gaet", "gate"}: 1, {"accuracy", "acuracy"}: 1, {"kitten", "sitting"}: 3, {"abcd", "badc"}: 2,
	} {
		if got := distance(words[0], words[1]); got != want || distance(words[1], words[0]) != want {
			t.Errorf("%v: %d, want %d", words, got, want)
		}
	}
}
