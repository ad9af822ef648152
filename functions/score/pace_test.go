package score

import (
	"testing"
	"time"
)

// A run in ONNX Runtime's process takes a twentieth of its time, whatever a row takes.
func TestASlowModelGetsFewRowsAtOnce(t *testing.T) {
	for each, want := range map[time.Duration]int{time.Microsecond: unitRows, 10 * time.Millisecond: 25, 100 * time.Millisecond: 2, 3 * time.Second: 1} {
		var p pace
		for range 20 {
			n := p.most()
			p.ran(n, time.Duration(n)*each)
		}
		if got := p.most(); got > want || 2*got < want {
			t.Errorf("%v a row: %d rows at once, not %d", each, got, want)
		}
		p.ran(p.most(), time.Second) // the machine was busy
		for range 20 {
			p.ran(p.most(), time.Duration(p.most())*time.Microsecond)
		}
		if p.most() != unitRows {
			t.Errorf("the model is fast again, and gets %d rows", p.most())
		}
	}
}
