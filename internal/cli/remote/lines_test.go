package remote

import (
	"strings"
	"testing"
)

func TestLineReader(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxLine)
	l := newLineReader(strings.NewReader(" a \n\n" + long + "yz\n" + long + "\nend"))
	want := []struct {
		length int
		err    error
	}{{1, nil}, {0, nil}, {0, errLongLine}, {maxLine, nil}, {3, nil}}
	for i, w := range want {
		line, err := l.next()
		if len(line) != w.length || err != w.err || l.number != i+1 {
			t.Errorf("line %d: %d bytes, %v, number %d", i+1, len(line), err, l.number)
		}
	}
	if _, err := l.next(); err == nil {
		t.Error("no end")
	}
}
