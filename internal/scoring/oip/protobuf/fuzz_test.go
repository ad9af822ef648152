package protobuf

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/oip"
)

var specsOfTests = []tensor.Spec{
	{Name: "f", Type: tensor.Float, Shape: []int{tensor.Any, 2}}, {Name: "d", Type: tensor.Double, Shape: []int{tensor.Any}},
	{Name: "i", Type: tensor.Int32, Shape: []int{tensor.Any}}, {Name: "l", Type: tensor.Int64, Shape: []int{tensor.Any}},
	{Name: "b", Type: tensor.Bool, Shape: []int{tensor.Any}}, {Name: "t", Type: tensor.String, Shape: []int{tensor.Any}},
}

// tensorsOfTests have negative numbers, and texts of several lengths.
func tensorsOfTests() []tensor.Tensor {
	return []tensor.Tensor{
		{Type: tensor.Float, Shape: []int{2, 2}, Floats: []float32{1, -2.5, 0, 1e30}}, {Type: tensor.Double, Shape: []int{2}, Doubles: []float64{-1e300, 0.1}},
		{Type: tensor.Int32, Shape: []int{2}, Ints: []int64{-1 << 31, 1<<31 - 1}}, {Type: tensor.Int64, Shape: []int{2}, Ints: []int64{-1 << 63, 1<<63 - 1}},
		{Type: tensor.Bool, Shape: []int{2}, Ints: []int64{0, 1}}, {Type: tensor.String, Shape: []int{2}, Strings: []string{"", string(bytes.Repeat([]byte("ä"), 300))}},
	}
}

// requestOf writes a request as a client does: with raw data, or with contents.
func requestOf(all []tensor.Tensor, raw bool) (message []byte) {
	for i := range all {
		message = appendNested(message, 5, func(to []byte) []byte {
			to = appendShape(appendText(appendText(to, 1, specsOfTests[i].Name), 2, oip.Datatype(all[i].Type)), 3, all[i].Shape)
			if raw {
				return to
			}
			return appendNested(to, 5, func(to []byte) []byte { return appendContents(to, &all[i]) })
		})
	}
	for i := range all {
		if raw {
			message = oip.AppendRaw(appendHead(message, 7, oip.RawLength(&all[i])), &all[i])
		}
	}
	return message
}

func readAll(message []byte) (*oip.Call, error) {
	q, err := readQuestion(message)
	if err != nil {
		return nil, err
	}
	c := oip.NewCall(specsOfTests, specsOfTests)
	return c, readTensors(c, message, q.raws)
}

// Values of every datatype are the same after they were written and read, in both forms.
func TestTensorsInMessages(t *testing.T) {
	t.Parallel()
	want := tensorsOfTests()
	for _, raw := range []bool{true, false} {
		c, err := readAll(requestOf(want, raw))
		if err != nil {
			t.Fatalf("raw %v: %v", raw, err)
		}
		in, rows, err := c.Inputs()
		if err != nil || rows != 2 {
			t.Fatalf("raw %v: %d rows, %v", raw, rows, err)
		}
		for i := range in {
			if got, want := oip.AppendRaw(nil, &in[i]), oip.AppendRaw(nil, &want[i]); !bytes.Equal(got, want) {
				t.Errorf("raw %v, %s: %x, want %x", raw, specsOfTests[i].Name, got, want)
			}
		}
	}
}

// Numbers may also come one by one, as proto2 and some libraries write them.
func TestNumbersThatAreNotPacked(t *testing.T) {
	t.Parallel()
	contents := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), 7)
	input := protowire.AppendVarint(protowire.AppendTag(appendText(appendText(nil, 1, "l"), 2, "INT64"), 3, protowire.VarintType), 1)
	input = append(appendHead(input, 5, len(contents)), contents...)
	c := oip.NewCall(specsOfTests[3:4], nil)
	if err := readTensors(c, append(appendHead(nil, 5, len(input)), input...), 0); err != nil {
		t.Fatal(err)
	}
	if in, _, err := c.Inputs(); err != nil || in[0].Ints[0] != 7 {
		t.Errorf("%v, %v", in, err)
	}
}

// Two million empty inputs end at the first one, and take no memory.
func TestAMessageOfEmptyInputsTakesNoMemory(t *testing.T) {
	message := bytes.Repeat([]byte{5<<3 | 2, 0}, 2<<20)
	if n := testing.AllocsPerRun(1, func() {
		if _, err := readAll(message); err == nil {
			t.Error("a request without a name was read")
		}
	}); n > 30 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzMessages(f *testing.F) {
	f.Add(requestOf(tensorsOfTests(), true))
	f.Add(requestOf(tensorsOfTests(), false))
	f.Add(appendText(appendText(appendText(nil, 1, "m"), 2, "7"), 3, "id"))
	f.Fuzz(func(t *testing.T, message []byte) {
		c, err := readAll(message)
		if err != nil {
			return
		}
		in, _, err := c.Inputs()
		if err != nil {
			return
		}
		for i := range in {
			if 2*len(message) < in[i].Len() {
				t.Errorf("%d values from %d bytes", in[i].Len(), len(message))
			}
		}
	})
}
