package score

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tidemill.dev/broker"
)

// longestID has the length of the longest id of a topic.
const longestID = "abcdefghijk.abcdef"

func TestANoteSaysWhatItWasTold(t *testing.T) {
	for _, n := range []offsetNote{
		{to: 3, from: 12, mark: heldMark{at: 5, serial: 6, waits: true}, out: longestID},
		{facts: []int64{0, 7, 1 << 40}, to: 0, from: 1 << 50, mark: noMark},
	} {
		got, err := parseNote(n.text(factsText(n.facts)))
		if err != nil || got.to != n.to || got.from != n.from || got.mark != n.mark || got.out != n.out || !slices.Equal(got.facts, n.facts) || !got.committed {
			t.Errorf("%+v came back as %+v, %v", n, got, err)
		}
	}
	if n, err := parseNote(""); err != nil || n.committed {
		t.Errorf("no note is %+v, %v", n, err)
	}
}

func TestANoteThatCannotBeReadIsNotPassedOver(t *testing.T) {
	whole := offsetNote{to: 1, from: 2, mark: heldMark{at: 3, serial: 1}}.text(factsText([]int64{4, 5}))
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
	if got := len(offsetNote{to: 200, from: 1 << 40, mark: heldMark{at: 1 << 40, serial: 1 << 40}, out: longestID}.text(factsText(facts))); got > broker.MaxNote {
		t.Errorf("it has %d bytes", got)
	}
}

// A note fits with every number of partitions of facts that a config allows, however many facts there
// are. It has either all places, or a number from which the next owner can find later ones.
func TestScaleNote(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 4096))
	for range 500 {
		facts := make([]int64, 1+r.IntN(4096))
		most := int64(1) << r.IntN(50)
		sum := int64(0)
		for i := range facts {
			facts[i] = r.Int64N(most)
			sum += facts[i]
		}
		n := offsetNote{to: r.Int32(), from: r.Int64N(most), mark: heldMark{at: r.Int64N(most), serial: r.Int64N(most)}, out: longestID}
		text := n.text(factsText(facts))
		if len(text) > broker.MaxNote {
			t.Fatalf("with %d partitions of up to %d facts it has %d bytes", len(facts), most, len(text))
		}
		got, err := parseNote(text)
		if err != nil || got.to != n.to || got.from != n.from || got.mark != n.mark || got.out != n.out || !got.committed {
			t.Fatalf("%+v came back as %+v, %v", n, got, err)
		}
		if whole := slices.Equal(got.facts, facts) && got.total == 0; !whole && (got.facts != nil || got.total != sum) {
			t.Fatalf("of %d places, the sum %d, %d came back, the sum %d", len(facts), sum, len(got.facts), got.total)
		}
	}
}

// Notes of earlier versions stay readable.
func TestANoteOfAnEarlierVersionIsRead(t *testing.T) {
	n, err := parseNote("scorer1:BhgKDA:AwAOgICAgIBA")
	if err != nil || n.to != 3 || n.from != 12 || n.mark != (heldMark{at: 5, serial: 6}) || !slices.Equal(n.facts, []int64{0, 7, 1 << 40}) {
		t.Errorf("it says %+v, %v", n, err)
	}
}

func FuzzNotes(f *testing.F) {
	f.Add(offsetNote{to: 1, from: 2, mark: heldMark{at: 3, serial: 1}}.text(factsText([]int64{4, 5})))
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
