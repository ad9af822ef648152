package fleet

import (
	"encoding/json"
	"strconv"
)

// Kind is what the events' data consists of.
type Kind string

// The kinds.
const (
	KindDigits Kind = "digits" // {"x":[0,3,1,…]}, how often each hashed word occurs
	KindFloats Kind = "floats" // {"x":[0.7372549,…]}, the points of a picture
	KindText   Kind = "text"   // {"text":"hello there"}
)

// bodies are how many different data there are; events take them in turn.
const bodies = 1009

// Body is the data of an event and what is in it.
type Body struct {
	Data []byte
	Row  []float32 // nil for a text
	Text string
}

// Bodies are the data of the events: event number i has number i modulo their
// count.
func (f *Fleet) Bodies() []Body {
	all := make([]Body, bodies)
	r := source(42)
	for i := range all {
		switch f.Kind {
		case KindText:
			all[i] = textBody(f.Texts[i%len(f.Texts)])
		case KindDigits:
			all[i] = tableBody(f.Network[0], func() float32 { return digit(r) })
		default:
			all[i] = tableBody(f.Network[0], func() float32 { return r.unit() })
		}
	}
	return all
}

// digit is a count: mostly none, as a message has few of all words.
func digit(r *random) float32 {
	if n := r.next() % 40; n < 10 {
		return float32(n)
	}
	return 0
}

func tableBody(n int, draw func() float32) Body {
	b := Body{Data: []byte(`{"` + Input + `":[`), Row: make([]float32, n)}
	for i := range b.Row {
		if i > 0 {
			b.Data = append(b.Data, ',')
		}
		b.Row[i] = draw()
		b.Data = strconv.AppendFloat(b.Data, float64(b.Row[i]), 'g', -1, 32)
	}
	b.Data = append(b.Data, "]}"...)
	return b
}

func textBody(text string) Body {
	quoted, _ := json.Marshal(text) // of a text: cannot fail
	return Body{Data: append(append([]byte(`{"text":`), quoted...), '}'), Text: text}
}
