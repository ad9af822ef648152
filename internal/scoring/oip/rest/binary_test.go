package rest

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/binary"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/internal/scoring/oip"
)

// every is a tensor of each type.
func every() []tensor.Tensor {
	return []tensor.Tensor{
		{Type: tensor.Float, Shape: []int{2}, Floats: []float32{1.5, -2}},
		{Type: tensor.Double, Shape: []int{2}, Doubles: []float64{1e300, math.Inf(1)}},
		{Type: tensor.Int32, Shape: []int{2}, Ints: []int64{math.MinInt32, 7}},
		{Type: tensor.Int64, Shape: []int{2}, Ints: []int64{math.MaxInt64, -1}},
		{Type: tensor.Bool, Shape: []int{2}, Ints: []int64{1, 0}},
		{Type: tensor.String, Shape: []int{2}, Strings: []string{"hé", ""}},
	}
}

// request makes the JSON of a request with these tensors in binary.
func request(all []tensor.Tensor, sizes []int) (text string, specs []tensor.Spec) {
	for i, t := range all {
		name := strconv.Itoa(i)
		specs = append(specs, tensor.Spec{Name: name, Type: t.Type, Shape: []int{tensor.Any}})
		text += `,{"name":"` + name + `","shape":[2],"datatype":"` + oip.Datatype(t.Type) + `","parameters":{"binary_data_size":` + strconv.Itoa(sizes[i]) + `}}`
	}
	return `{"inputs":[` + text[1:] + `]}`, specs
}

func TestBinaryTensorsAreReadAsWritten(t *testing.T) {
	t.Parallel()
	var tail []byte
	var sizes []int
	all := every()
	for i := range all {
		before := len(tail)
		tail = oip.AppendRaw(tail, &all[i])
		sizes = append(sizes, len(tail)-before)
	}
	if want := []int{8, 16, 8, 16, 2, 11}; !reflect.DeepEqual(sizes, want) {
		t.Errorf("the tensors have %d bytes, want %d", sizes, want)
	}
	text, specs := request(all, sizes)
	read := func(tail []byte) ([]tensor.Tensor, error) {
		c := oip.NewCall(specs, nil)
		if err := (&question{b: []byte(text), tail: tail, call: c}).read(); err != nil {
			return nil, err
		}
		in, _, err := c.Inputs()
		return in, err
	}
	in, err := read(tail)
	for i := range in {
		if again := oip.AppendRaw(nil, &in[i]); in[i].Len() != 2 || !bytes.Equal(again, oip.AppendRaw(nil, &all[i])) {
			t.Errorf("%+v is read as %+v", all[i], in[i])
		}
	}
	if err != nil {
		t.Error(err)
	}
	if _, err := read(append(tail, 0)); err == nil || !strings.Contains(err.Error(), "1 bytes after the binary tensors") {
		t.Errorf("bytes that belong to no tensor: %v", err)
	}
	for n := range tail {
		if _, err := read(tail[:n]); oip.CodeOf(err) != oip.Invalid {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestBinaryTensorsThatDoNotFit(t *testing.T) {
	t.Parallel()
	for says, data := range map[string][]byte{
		"ends within text 1":                       {9, 0, 0, 0, 'a', 0, 0, 0},
		"ends within text 2":                       {4, 0, 0, 0, 'a', 'b', 'c', 'd'},
		"text 1 of its binary tensor is not UTF-8": {1, 0, 0, 0, 0xff, 0, 0, 0, 0},
		"has 1 bytes after its 2 texts":            {0, 0, 0, 0, 0, 0, 0, 0, 0},
		"fewer values":                             {0},
	} {
		text, specs := request([]tensor.Tensor{{Type: tensor.String}}, []int{len(data)})
		err := (&question{b: []byte(text), tail: data, call: oip.NewCall(specs, nil)}).read()
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v, want %q", data, err, says)
		}
	}
	for _, header := range []string{"x", "-1", "4", "1.0"} {
		if _, _, err := split(header, []byte("{}")); oip.CodeOf(err) != oip.Invalid {
			t.Errorf("header %s: %v", header, err)
		}
	}
}

// limited is a budget with a limit.
type limited struct{ left int64 }

func (l *limited) Take(n int64) error {
	if l.left -= n; l.left < 0 {
		return infer.ErrNoRoom
	}
	return nil
}

// A compressed body takes its memory from the budget before it grows.
func TestCompressedBodies(t *testing.T) {
	t.Parallel()
	pack := func(w func(io.Writer) io.WriteCloser, plain []byte) []byte {
		var b bytes.Buffer
		c := w(&b)
		if _, err := c.Write(plain); err != nil || c.Close() != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	plain := bytes.Repeat([]byte("0123456789"), 100_000)
	for encoding, packed := range map[string][]byte{
		"":        plain,
		"gzip":    pack(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }, plain),
		"deflate": pack(func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }, plain),
	} {
		got, err := unpacked(t.Context(), encoding, packed, 1<<20)
		if err != nil || !bytes.Equal(got, plain) {
			t.Errorf("%s: %d bytes, %v", encoding, len(got), err)
		}
		if encoding == "" {
			continue
		}
		if _, err := unpacked(t.Context(), encoding, packed, 999_999); oip.CodeOf(err) != oip.TooLarge {
			t.Errorf("%s beyond the limit: %v", encoding, err)
		}
		if _, err := unpacked(t.Context(), encoding, packed[:len(packed)/2], 1<<20); oip.CodeOf(err) != oip.Invalid {
			t.Errorf("%s, half of it: %v", encoding, err)
		}
		if _, err := unpacked(t.Context(), encoding, []byte("x"), 1<<20); oip.CodeOf(err) != oip.Invalid {
			t.Errorf("%s that is none: %v", encoding, err)
		}
		if _, err := unpacked(infer.WithBudget(context.Background(), &limited{1 << 19}), encoding, packed, 1<<20); oip.CodeOf(err) != oip.Unavailable {
			t.Errorf("%s without room: %v", encoding, err)
		}
	}
	if _, err := unpacked(t.Context(), "br", plain, 1<<20); oip.CodeOf(err) != oip.Invalid {
		t.Errorf("an encoding that is not known: %v", err)
	}
}

// Any bytes are read as tensors or refused, and what is read is written as it was.
func FuzzBinary(f *testing.F) {
	var seed []byte
	for _, t := range every() {
		seed = oip.AppendRaw(seed, &t)
	}
	f.Add(seed, 8, 16, 8, 16, 2, 11)
	f.Add([]byte{255, 255, 255, 255}, 0, 0, 0, 0, 0, 4)
	f.Add(binary.LittleEndian.AppendUint32(nil, 1<<31), -1, 1<<62, 0, 0, 0, 4)
	f.Fuzz(func(t *testing.T, tail []byte, a, b, c, d, e, g int) {
		text, specs := request(every(), []int{a, b, c, d, e, g})
		call := oip.NewCall(specs, nil)
		if (&question{b: []byte(text), tail: tail, call: call}).read() != nil {
			return
		}
		in, _, err := call.Inputs()
		if err != nil {
			t.Fatal(err)
		}
		var again []byte
		for i := range in {
			if in[i].Type == tensor.Bool {
				again = append(again, tail[len(again):len(again)+2]...) // every byte but 0 is true
				continue
			}
			again = oip.AppendRaw(again, &in[i])
		}
		if !bytes.Equal(again, tail) {
			t.Errorf("%x is read and written as %x", tail, again)
		}
	})
}
