package rest

import (
	"strconv"

	"tidemill.dev/internal/scoring/jsontensor"
	"tidemill.dev/internal/scoring/oip"
)

// answerValue is the memory of a value of an answer, twice, because the text grows by copies.
const answerValue = 32

// write writes the outputs of a call into the question's memory: the JSON into answer, the binary
// tensors into bytes.
func (q *question) write() error {
	if err := q.call.Take(q.call.Values(), answerValue); err != nil {
		return err
	}
	dst := append(q.answer[:0], `{"model_name":`...)
	dst = jsontensor.AppendText(dst, q.call.Ref().Model)
	dst = append(dst, `,"model_version":"`...)
	dst = strconv.AppendInt(dst, int64(q.call.Ref().Version), 10)
	dst = append(dst, '"')
	if q.id != "" {
		dst = jsontensor.AppendText(append(dst, `,"id":`...), q.id)
	}
	dst = append(dst, `,"outputs":[`...)
	n := 0
	for s, t := range q.call.Outputs {
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = jsontensor.AppendText(append(dst, `{"name":`...), s.Name)
		dst = append(dst, `,"shape":[`...)
		for i, size := range t.Shape {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendInt(dst, int64(size), 10)
		}
		dst = append(dst, `],"datatype":"`...)
		dst = append(dst, oip.Datatype(t.Type)...)
		if q.isBinary(n) {
			before := len(q.bytes)
			q.mixed = true
			q.bytes = oip.AppendRaw(q.bytes, t)
			dst = append(dst, `","parameters":{"binary_data_size":`...)
			dst = strconv.AppendInt(dst, int64(len(q.bytes)-before), 10)
			dst = append(dst, "}}"...)
		} else {
			finite := false
			dst, finite = jsontensor.Append(append(dst, `","data":`...), t)
			if !finite {
				return oip.Errorf(oip.Broken, "the model's answer %q contains NaN or infinity, which JSON cannot express: request it with the parameter binary_data", s.Name)
			}
			dst = append(dst, '}')
		}
		n++
	}
	if dst = append(dst, "]}"...); !q.mixed {
		dst = append(dst, '\n')
	}
	q.answer = dst
	return nil
}

// isBinary reports whether the output at a place of the answer is binary.
func (q *question) isBinary(n int) bool {
	if n < len(q.forms) && q.forms[n] != formDefault {
		return q.forms[n] == formBinary
	}
	return q.binary
}
