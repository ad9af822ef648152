package chaos

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strconv"
)

// A model of a round takes four numbers and has five labels. Its label depends only on its name and
// version, not on the input. So the judge sees whether an answer comes from that version.
const (
	modelWidth  = 4
	modelLabels = 5
)

// labelOf returns the answer of a version of a model.
func labelOf(model string, version int) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(model)) // never fails
	return "l" + strconv.Itoa((int(h.Sum32()%modelLabels)+version)%modelLabels)
}

// modelCard returns the version's model.yaml.
func modelCard(model string, version int) []byte {
	return []byte("labels: [l0, l1, l2, l3, l4]\ngolden: {inputs: {x: [[0, 0, 0, 0]]}, label: " + labelOf(model, version) + "}\n")
}

// modelFile returns the version's ONNX file: Softmax(x·w + b), where b decides.
func modelFile(model string, version int) []byte {
	r := rand.New(rand.NewPCG(uint64(version), 5))
	w, b := make([]float32, modelWidth*modelLabels), make([]float32, modelLabels)
	for i := range w {
		w[i] = float32(r.Float64()-0.5) / 100
	}
	b[labelOf(model, version)[1]-'0'] = 4
	graph := proto{}.bytes(1, node("Gemm", "h", "x", "w", "b")).bytes(1, node("Softmax", "y", "h")).text(2, "chaos").
		bytes(5, tensorOf("w", w, modelWidth, modelLabels)).bytes(5, tensorOf("b", b, modelLabels)).
		bytes(11, valueOf("x", modelWidth)).bytes(12, valueOf("y", modelLabels))
	return proto{}.number(1, 8).bytes(7, graph).bytes(8, proto{}.number(2, 13))
}

// proto writes the part of protobuf that an ONNX file needs.
type proto []byte

func (p proto) number(field int, n int64) proto {
	return binary.AppendUvarint(binary.AppendUvarint(p, uint64(field)<<3), uint64(n))
}

func (p proto) bytes(field int, b []byte) proto {
	return append(binary.AppendUvarint(binary.AppendUvarint(p, uint64(field)<<3|2), uint64(len(b))), b...)
}

func (p proto) text(field int, s string) proto { return p.bytes(field, []byte(s)) }

func node(op, out string, in ...string) proto {
	n := proto{}
	for _, i := range in {
		n = n.text(1, i)
	}
	return n.text(2, out).text(3, out).text(4, op)
}

func tensorOf(name string, data []float32, dims ...int64) proto {
	t, raw := proto{}, []byte{}
	for _, d := range dims {
		t = t.number(1, d)
	}
	for _, x := range data {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	return t.number(2, 1).text(8, name).bytes(9, raw)
}

func valueOf(name string, width int64) proto {
	shape := proto{}.bytes(1, proto{}.text(2, "N")).bytes(1, proto{}.number(1, width))
	return proto{}.text(1, name).bytes(2, proto{}.bytes(1, proto{}.number(1, 1).bytes(2, shape)))
}
