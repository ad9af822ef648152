package fleet

import (
	"encoding/json"
	"strconv"
)

// Kind is the kind of data in the events.
type Kind string

// The kinds.
const (
	KindDigits Kind = "digits" // {"x":[0,3,1,…]}: counts of hashed words
	KindFloats Kind = "floats" // {"x":[0.7372549,…]}: pixels of a picture
	KindText   Kind = "text"   // {"text":"hello there"}
)

// bodyCount is the number of different data. Events use them in turn.
const bodyCount = 1009

// Body is an event's data, as bytes and as the model's input.
type Body struct {
	Data []byte
	Row  []float32 // nil for a text
	Text string
}

// Bodies returns the data of the events. Event number i has the body with
// the number i modulo bodyCount.
func (f *Fleet) Bodies() []Body {
	all := make([]Body, bodyCount)
	r := source(42)
	for i := range all {
		switch f.Kind {
		case KindText:
			all[i] = textBody(f.Texts[i%len(f.Texts)])
		case KindDigits:
			all[i] = tableBody(f.Network[0], func() float32 { return drawCount(r) })
		default:
			all[i] = tableBody(f.Network[0], func() float32 { return r.drawUnit() })
		}
	}
	return all
}

// drawCount draws a count, mostly 0, because a message contains few of all words.
func drawCount(r *randomSource) float32 {
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
	quoted, _ := json.Marshal(text) // marshalling a text cannot fail
	return Body{Data: append(append([]byte(`{"text":`), quoted...), '}'), Text: text}
}
