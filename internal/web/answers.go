package web

import (
	"encoding/json"
	"strconv"
)

// answerRoom is what the answer for one event mostly takes.
const answerRoom = 128

// appendAnswers writes the answers to a batch that is stored, as encoding/json
// writes an api.Answers: there is one for each of thousands of events, and to
// write them was a good part of what a batch cost. It gives up at an event that
// was refused, for then the answer is a problem.
func appendAnswers(dst []byte, items []*item) (text []byte, stored bool) {
	dst = append(dst, `{"events":[`...)
	for n, i := range items {
		problem, repeated := i.outcome()
		if problem != nil {
			return nil, false
		}
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '{')
		if i.view.ID != "" {
			dst = append(appendText(append(dst, `"id":`...), i.view.ID), ',')
		}
		dst = append(dst, `"status":202`...)
		if repeated {
			dst = append(dst, `,"repeated":true}`...)
			continue
		}
		dst = appendText(append(dst, `,"position":{"stream":`...), i.receipt.Stream)
		dst = strconv.AppendInt(append(dst, `,"partition":`...), int64(i.receipt.Partition), 10)
		dst = strconv.AppendInt(append(dst, `,"offset":`...), i.receipt.Offset, 10)
		dst = append(dst, `}}`...)
	}
	return append(dst, "]}\n"...), true
}

// appendText writes a JSON string. What needs no escape, as most do not, is
// copied.
func appendText(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string cannot fail
			return append(dst, quoted...)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}
