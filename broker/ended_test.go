package broker

import (
	"math/rand/v2"
	"reflect"
	"testing"
)

func TestEndedSpansSurviveTheirEncoding(t *testing.T) {
	for _, spans := range [][]span{nil, {{5, 6}}, {{5, 9}, {12, 13}, {1 << 33, 1<<33 + 7}}} {
		if got := decodeEnded(3, encodeEnded(3, spans)); !reflect.DeepEqual(got, spans) {
			t.Errorf("%v came back as %v", spans, got)
		}
	}
}

func TestEndedSpansThatDoNotFitAreLeftOut(t *testing.T) {
	var spans []span
	for i := range int64(10_000) {
		spans = append(spans, span{2 * i, 2*i + 1})
	}
	text := encodeEnded(0, spans)
	got := decodeEnded(0, text)
	if len(text) > maxEnded+len(endedPrefix) || len(got) == 0 || !reflect.DeepEqual(got, spans[:len(got)]) {
		t.Errorf("%d bytes hold %d spans", len(text), len(got))
	}
}

func TestForeignMetadataSaysNothing(t *testing.T) {
	for _, m := range []string{"", "x", "ended:", "ended:!", "ended://///////////w", "ended:AAA"} {
		if got := decodeEnded(7, m); got != nil {
			t.Errorf("%q was read as %v", m, got)
		}
	}
}

// A successor hands out exactly what had not ended.
func TestEndedBeyondListsWhatEnded(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var w watermark
		w.begin(10)
		ended := map[int64]bool{}
		offset := int64(10)
		for range 100 {
			offset += 1 + rng.Int64N(2) // holes are markers and aborted events
			number := w.add(offset)
			if rng.IntN(2) == 0 {
				w.end(number)
				ended[offset] = true
			}
		}
		spans := decodeEnded(w.next, encodeEnded(w.next, w.endedBeyond(maxEnded)))
		for o := w.next; o <= offset; o++ {
			if covered(spans, o) != ended[o] {
				t.Fatalf("offset %d: ended %v, listed %v", o, ended[o], !ended[o])
			}
		}
	}
}

// Of a span in whose midst a reader's last answer ended, the rest has ended still.
func TestEndedSpansAreKeptWhereReadingStopsWithinThem(t *testing.T) {
	p := &inPartition{ended: []span{{2, 10}, {12, 14}}}
	p.mark.begin(0)
	p.mark.skip(5)
	if got, want := p.endedSpans(), []span{{5, 10}, {12, 14}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v are left, want %v", got, want)
	}
}

// A letter that is written does not hide an open event at the same offset.
func TestALetterDoesNotEndTheEventAtItsOffset(t *testing.T) {
	var w watermark
	w.begin(10)
	w.add(10)
	w.add(11)
	w.end(w.add(11)) // the letter about what was left over behind the event
	w.end(w.add(12))
	if got, want := w.endedBeyond(maxEnded), []span{{12, 13}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v have ended, want %v", got, want)
	}
	w.begin(20)
	w.add(20)
	w.end(w.add(21))
	w.add(21)
	w.end(w.add(22))
	if got, want := w.endedBeyond(maxEnded), []span{{22, 23}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v have ended, want %v", got, want)
	}
}

// A transaction's rewind that the Assigned hook moves reads all there is again.
func TestRewindToAnotherPlaceForgetsWhatHadEnded(t *testing.T) {
	c, p := bareReader(t, ConsumerOptions{}, nil)
	for offset, want := range map[int64]int{7: 1, 3: 0} {
		p.ended = []span{{9, 12}}
		p.c = c
		p.rewind(offset, origin{offset: 7})
		if len(p.ended) != want {
			t.Errorf("rewound to %d, %d spans are left", offset, len(p.ended))
		}
	}
}
