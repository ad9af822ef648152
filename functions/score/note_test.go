package score

import (
	"slices"
	"strings"
	"testing"

	"tidemill.dev/broker"
)

func TestANoteSaysWhatItWasTold(t *testing.T) {
	for _, n := range []offsetNote{
		{to: 3, from: 12, mark: heldMark{5, 6}},
		{facts: []int64{0, 7, 1 << 40}, to: 0, from: 1 << 50, mark: noMark},
	} {
		got, err := parseNote(n.text(factsText(n.facts)))
		if err != nil || got.to != n.to || got.from != n.from || got.mark != n.mark || !slices.Equal(got.facts, n.facts) || !got.committed {
			t.Errorf("%+v came back as %+v, %v", n, got, err)
		}
	}
	if n, err := parseNote(""); err != nil || n.committed {
		t.Errorf("no note is %+v, %v", n, err)
	}
}

func TestANoteThatCannotBeReadIsNotPassedOver(t *testing.T) {
	whole := offsetNote{to: 1, from: 2, mark: heldMark{3, 1}}.text(factsText([]int64{4, 5}))
	own, facts, _ := strings.Cut(strings.TrimPrefix(whole, notePrefix), ":")
	for _, text := range []string{"x", notePrefix, notePrefix + own, "scorer2:" + own + ":" + facts, notePrefix + ":" + facts,
		notePrefix + own + ":", notePrefix + "!:" + facts, notePrefix + own + ":" + facts[:len(facts)-2], notePrefix + own + "AA:" + facts} {
		if n, err := parseNote(text); err == nil {
			t.Errorf("%q was read as %+v", text, n)
		}
	}
}

// A note with many partitions of facts and large offsets fits Kafka's limit.
func TestANoteFits(t *testing.T) {
	facts := make([]int64, 200)
	for i := range facts {
		facts[i] = 1 << 33
	}
	if got := len(offsetNote{to: 200, from: 1 << 40, mark: heldMark{1 << 40, 1 << 40}}.text(factsText(facts))); got > broker.MaxNote {
		t.Errorf("it has %d bytes", got)
	}
}

func FuzzNotes(f *testing.F) {
	f.Add(offsetNote{to: 1, from: 2, mark: heldMark{3, 1}}.text(factsText([]int64{4, 5})))
	f.Add(notePrefix + "AAAA:AA")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseNote(text)
		if err != nil || !n.committed {
			return
		}
		again, err := parseNote(n.text(factsText(n.facts)))
		if err != nil || again.to != n.to || again.from != n.from || again.mark != n.mark || !slices.Equal(again.facts, n.facts) {
			t.Errorf("%q says %+v, and again %+v, %v", text, n, again, err)
		}
	})
}

// Parked events wait unless the mark is at the parked partition's end. The last transaction's
// marker does not count.
func TestANoteTellsWhetherEventsWait(t *testing.T) {
	text := func(m heldMark) string { return offsetNote{mark: m}.text(factsText(nil)) }
	for _, c := range []struct {
		text string
		end  int64
		want bool
	}{
		{"", 9, false}, {text(noMark), 0, false}, {text(heldMark{at: 0}), 0, false},
		{text(heldMark{at: 0}), 2, true}, {text(heldMark{at: 4}), 5, false}, {text(heldMark{at: 4}), 6, true},
	} {
		if got, err := Waits(c.text, c.end); err != nil || got != c.want {
			t.Errorf("%q, with an end at %d: %t, %v", c.text, c.end, got, err)
		}
	}
	if _, err := Waits("scorer9:", 1); err == nil {
		t.Error("a note of another version is read")
	}
}
