package command

import (
	"strings"
	"testing"
)

// A text is drawn over the text before, as far as the screen has room.
func TestAViewDrawsOver(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	v := view{s: &Session{Stdout: &b}}
	for _, text := range []string{"a\nb\n", "a\nb\n", "c\n"} {
		if err := v.show(text); err != nil {
			t.Fatal(err)
		}
	}
	if got := b.String(); got != "a\nb\n\nc\n" {
		t.Errorf("elsewhere than on a terminal: %q", got)
	}
}
