package remote

import (
	"strings"
	"testing"
)

// A terminal gets only printable characters, wherever the log is split.
func TestALogOnAScreen(t *testing.T) {
	t.Parallel()
	const said = "epoch 1\r\x1b[2Jépoch 2\ta\x00\u009b6n\u2028\xff…\n"
	const want = "epoch 1\r·[2Jépoch 2\ta··6n \ufffd…\n"
	for at := range len(said) {
		var screen strings.Builder
		o := &logOutput{to: &screen, seen: true}
		for _, part := range []string{said[:at], said[at:]} {
			if n, err := o.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := o.flush(); err != nil || screen.String() != want {
			t.Errorf("cut at %d it shows %q, want %q, %v", at, screen.String(), want, err)
		}
	}
	var file strings.Builder
	o := &logOutput{to: &file}
	if _, err := o.Write([]byte(said)); err != nil || file.String() != said {
		t.Errorf("a file gets %q", file.String())
	}
}
