package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/load"
)

// inferBodies is the number of different requests.
const inferBodies = 16

// inferForm is a form of the same request.
type inferForm int

const (
	formJSON inferForm = iota
	formLong           // JSON as Python writes arrays of float32: 17 digits and blanks
	formBinary
	formGRPC
)

// request returns a request for one row, and the further header of binary tensors.
func (s *inferServer) request(row []float32) (body []byte, header string) {
	switch s.form {
	case formBinary:
		body = fmt.Appendf(nil, `{"inputs":[{"name":%q,"shape":[1,%d],"datatype":"FP32","parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`,
			fleet.Input, len(row), 4*len(row))
		return append(body, rawFloats(row)...), strconv.Itoa(len(body))
	case formGRPC:
		return s.message(row), ""
	}
	comma, bits := ",", 32
	if s.form == formLong {
		comma, bits = ", ", 64
	}
	body = fmt.Appendf(nil, `{"inputs":[{"name":%q,"shape":[1,%d],"datatype":"FP32","data":[`, fleet.Input, len(row))
	for i, v := range row {
		if i > 0 {
			body = append(body, comma...)
		}
		body = strconv.AppendFloat(body, float64(v), 'g', -1, bits)
	}
	return append(body, "]}]}"...), ""
}

func rawFloats(row []float32) (raw []byte) {
	for _, v := range row {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
	}
	return raw
}

func floatsOf(raw []byte) (all []float64) {
	for ; len(raw) >= 4; raw = raw[4:] {
		all = append(all, float64(math.Float32frombits(binary.LittleEndian.Uint32(raw))))
	}
	return all
}

// Numbers of the protocol's ModelInferRequest, ModelInferResponse, and their tensors.
const (
	fieldModel, fieldInputs, fieldRawInputs = 1, 5, 7
	fieldOutputs, fieldRawOutputs           = 5, 6
	fieldName, fieldDatatype, fieldShape    = 1, 2, 3
	fieldContents, fieldFloats              = 5, 6
)

// message returns a ModelInferRequest with the row as raw bytes, as clients send it.
func (s *inferServer) message(row []float32) []byte {
	field := func(to []byte, number protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), value)
	}
	tensor := field(field(nil, fieldName, []byte(fleet.Input)), fieldDatatype, []byte("FP32"))
	tensor = field(tensor, fieldShape, protowire.AppendVarint(protowire.AppendVarint(nil, 1), uint64(len(row))))
	return field(field(field(nil, fieldModel, []byte(s.model)), fieldInputs, tensor), fieldRawInputs, rawFloats(row))
}

// messageAnswer returns the numbers of a ModelInferResponse: raw bytes, or the contents of its output.
func messageAnswer(answer []byte) []float64 {
	if raw := fieldOf(answer, fieldRawOutputs); raw != nil {
		return floatsOf(raw)
	}
	return floatsOf(fieldOf(fieldOf(fieldOf(answer, fieldOutputs), fieldContents), fieldFloats))
}

// fieldOf returns the first value of a field, or nil.
func fieldOf(message []byte, number protowire.Number) []byte {
	for len(message) > 0 {
		at, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return nil
		}
		value := message[tag:]
		n := protowire.ConsumeFieldValue(at, kind, value)
		if n < 0 {
			return nil
		}
		if at == number && kind == protowire.BytesType {
			found, _ := protowire.ConsumeBytes(value)
			return found
		}
		message = value[n:]
	}
	return nil
}

func (s *inferServer) contentType() string {
	if s.form == formBinary {
		return "application/octet-stream"
	}
	return "application/json"
}

// path returns the path of the requests, or their method.
func (s *inferServer) path() string {
	if s.form == formGRPC {
		return "/inference.GRPCInferenceService/ModelInfer"
	}
	return "/v2/models/" + s.model + "/infer"
}

// inferHeader is the header with the size of the JSON before binary tensors.
const inferHeader = "Inference-Header-Content-Length"

// checkAnswers asks for every row, and compares the answers with those of plain arithmetic.
func (s *inferServer) checkAnswers(ctx context.Context, w *scoreBench) error {
	for i, b := range w.fleet.Bodies()[:inferBodies] {
		got, err := s.ask(ctx, b.Row)
		if err != nil {
			return err
		}
		want := w.fleet.Network.Answers(fleet.Seed(0, 1), b.Row)
		for at, v := range want {
			if len(got) != len(want) || math.Abs(got[at]-v) > tolerance {
				return fmt.Errorf("the answer to request %d is %v and should be %v", i, got, want)
			}
		}
	}
	return nil
}

func (s *inferServer) ask(ctx context.Context, row []float32) ([]float64, error) {
	body, header := s.request(row)
	if s.form == formGRPC {
		answer, err := load.CallGRPC(s.addr, s.path(), body)
		return messageAnswer(answer), err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.addr+s.path(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", s.contentType())
	if header != "" {
		req.Header.Set(inferHeader, header)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	said, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, &refusedInfer{res.StatusCode, fmt.Sprintf("the server answers %s: %.300s", res.Status, bytes.TrimSpace(said))}
	}
	if s.form == formBinary {
		return binaryAnswer(res.Header.Get(inferHeader), said)
	}
	var a struct {
		Outputs []struct{ Data []float64 }
	}
	if err := json.Unmarshal(said, &a); err != nil || len(a.Outputs) == 0 {
		return nil, fmt.Errorf("the server answers %.300s: %w", said, err)
	}
	return a.Outputs[0].Data, nil
}

// binaryAnswer returns the numbers that follow an answer's JSON, whose size is in the header.
func binaryAnswer(header string, said []byte) (all []float64, err error) {
	n, err := strconv.Atoi(header)
	if err != nil || n > len(said) {
		return nil, fmt.Errorf("the server answers without tensors in binary: %.300s", said)
	}
	return floatsOf(said[n:]), nil
}

// refusedInfer is an answer with another status than 200.
type refusedInfer struct {
	status int
	said   string
}

func (r *refusedInfer) Error() string { return r.said }
