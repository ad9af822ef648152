package protobuf

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/oip"
)

// question is a ModelInferRequest without its tensors.
type question struct {
	model, version, id string
	raws               int // number of raw_input_contents
}

// readQuestion reads the fields that are needed before the tensors.
func readQuestion(message []byte) (q question, err error) {
	f := fields{rest: message}
	for f.next() && err == nil {
		switch {
		case f.is(1):
			q.model, err = f.text("the model's name")
		case f.is(2):
			q.version, err = f.text("the version")
		case f.is(3):
			q.id, err = f.text("the id")
		case f.is(7):
			q.raws++
		}
	}
	if err == nil {
		err = f.end("the request")
	}
	return q, err
}

// infer answers a ModelInferRequest with a ModelInferResponse.
func (s *Service) infer(ctx context.Context, message, to []byte) ([]byte, error) {
	q, err := readQuestion(message)
	if err != nil {
		return nil, err
	}
	version, err := versionOf(q.version)
	if err != nil {
		return nil, err
	}
	c, err := s.server.Begin(ctx, strings.Clone(q.model), version) // the models keep the name
	if err != nil {
		return nil, err
	}
	defer c.End()
	if err := readTensors(c, message, q.raws); err != nil {
		return nil, err
	}
	if err := c.Run(); err != nil {
		return nil, err
	}
	if err := takeAnswer(c); err != nil {
		return nil, err
	}
	return appendAnswer(to, c, &q), nil
}

// takeAnswer takes memory for the message of the answer, which may grow by copies.
func takeAnswer(c *oip.Call) error {
	n := 0
	for _, t := range c.Outputs {
		n += 2 * oip.RawLength(t)
	}
	return c.Take(n, 1)
}

// readTensors reads the inputs and the requested outputs.
func readTensors(c *oip.Call, message []byte, raws int) error {
	raw := rawContents{fields: fields{rest: message}, most: raws}
	f := fields{rest: message}
	var err error
	for f.next() && err == nil {
		switch {
		case f.is(5):
			err = readInput(c, f.bytes, &raw)
		case f.is(6):
			err = readWanted(c, f.bytes)
		}
	}
	if err == nil && raw.used < raw.most {
		err = oip.Errorf(oip.Invalid, "the request has %d raw_input_contents for %d inputs", raw.most, raw.used)
	}
	return err
}

// rawContents are the raw_input_contents of a message, in their order.
type rawContents struct {
	fields
	used, most int
}

// take returns the data of the next input. It is nil without an error if there are no raw_input_contents.
func (r *rawContents) take() ([]byte, error) {
	if r.most == 0 {
		return nil, nil
	}
	for r.next() {
		if r.is(7) {
			r.used++
			return r.bytes, nil
		}
	}
	return nil, oip.Errorf(oip.Invalid, "the request has %d raw_input_contents, and more inputs: send the data of all inputs in the same way", r.most)
}

// mostSizes is the greatest number of dimensions of a shape.
const mostSizes = 64

// readInput reads an InferInputTensor.
func readInput(c *oip.Call, message []byte, raws *rawContents) (err error) {
	var name, datatype string
	var contents []byte
	var sizes [mostSizes]int
	shape := sizes[:0]
	f := fields{rest: message}
	for f.next() && err == nil {
		switch {
		case f.is(1):
			name, err = f.text("the name of an input")
		case f.is(2):
			datatype, err = f.text("a datatype")
		case f.number == 3:
			shape, err = addSizes(shape, &f)
		case f.is(4):
			err = checkParameter(f.bytes)
		case f.is(5):
			contents = f.bytes
		}
	}
	if err == nil {
		err = f.end("an input")
	}
	if err != nil {
		return err
	}
	raw, err := raws.take()
	if err != nil {
		return err
	}
	if raws.most > 0 && len(contents) > 0 {
		return oip.Errorf(oip.Invalid, "input %.100q has contents next to raw_input_contents: send one of them", name)
	}
	most := 0
	if raws.most > 0 {
		most = len(raw) / rawSizeOf(datatype)
	} else {
		_, least := fieldOf(datatype)
		most = len(contents) / least
	}
	t, err := c.Input(name, datatype, shape, most)
	switch {
	case err != nil:
		return err
	case raws.most > 0:
		return oip.FillRaw(name, t, raw)
	}
	return fillContents(name, t, contents)
}

func rawSizeOf(datatype string) int {
	switch datatype {
	case "FP64", "INT64":
		return 8
	case "BOOL":
		return 1
	}
	return 4
}

// addSizes adds the sizes of a shape, which may be stored together or one by one.
func addSizes(shape []int, f *fields) ([]int, error) {
	packed := f.bytes
	if f.kind != protowire.BytesType {
		packed = protowire.AppendVarint(nil, f.value)
	}
	for len(packed) > 0 {
		v, n := protowire.ConsumeVarint(packed)
		if n < 0 || len(shape) == mostSizes {
			return nil, oip.Errorf(oip.Invalid, "the shape of an input is invalid, or has more than %d sizes", mostSizes)
		}
		shape = append(shape, int(int64(v)))
		packed = packed[n:]
	}
	return shape, nil
}

// readWanted reads an InferRequestedOutputTensor.
func readWanted(c *oip.Call, message []byte) (err error) {
	name := ""
	f := fields{rest: message}
	for f.next() && err == nil {
		switch {
		case f.is(1):
			name, err = f.text("the name of an output")
		case f.is(2):
			err = checkParameter(f.bytes)
		}
	}
	if err == nil {
		err = f.end("a requested output")
	}
	if err != nil {
		return err
	}
	return c.Want(name)
}

// checkParameter refuses a parameter of a tensor that would change the answer or the place of the
// data. Other parameters are ignored.
func checkParameter(entry []byte) error {
	f := fields{rest: entry}
	for f.next() {
		if !f.is(1) {
			continue
		}
		if key := string(f.bytes); key == "classification" || strings.HasPrefix(key, "shared_memory_") {
			return oip.Errorf(oip.Invalid, "the parameter %s is not supported: send and receive all values in messages", key)
		}
	}
	return f.end("a parameter")
}

// appendAnswer appends a ModelInferResponse. Its data are raw if the request's are.
func appendAnswer(to []byte, c *oip.Call, q *question) []byte {
	ref := c.Ref()
	to = appendText(to, 1, ref.Model)
	to = protowire.AppendTag(to, 2, protowire.BytesType)
	at := len(to)
	to = append(to, 0) // the length of the version, which is short
	to = strconv.AppendInt(to, int64(ref.Version), 10)
	to[at] = byte(len(to) - at - 1)
	to = appendText(to, 3, q.id)
	for spec, t := range c.Outputs {
		to = appendOutput(to, spec, t, q.raws > 0)
	}
	if q.raws == 0 {
		return to
	}
	for _, t := range c.Outputs {
		to = oip.AppendRaw(appendHead(to, 6, oip.RawLength(t)), t)
	}
	return to
}

// appendOutput appends an InferOutputTensor.
func appendOutput(to []byte, spec *tensor.Spec, t *tensor.Tensor, raw bool) []byte {
	return appendNested(to, 5, func(to []byte) []byte {
		to = appendText(to, 1, spec.Name)
		to = appendText(to, 2, oip.Datatype(t.Type))
		to = appendShape(to, 3, t.Shape)
		if raw {
			return to
		}
		return appendNested(to, 5, func(to []byte) []byte { return appendContents(to, t) })
	})
}
