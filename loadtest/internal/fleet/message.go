package fleet

import "encoding/binary"

// message is an encoded protocol buffer message.
type message []byte

func (m *message) number(field, v int) *message {
	*m = binary.AppendUvarint(binary.AppendUvarint(*m, uint64(field)<<3), uint64(v))
	return m
}

func (m *message) bytes(field int, v []byte) *message {
	*m = append(binary.AppendUvarint(binary.AppendUvarint(*m, uint64(field)<<3|2), uint64(len(v))), v...)
	return m
}

func (m *message) text(field int, v string) *message { return m.bytes(field, []byte(v)) }

const typeFloat = 1 // TensorProto.FLOAT

func node(op string, output string, inputs ...string) message {
	var m message
	for _, in := range inputs {
		m.text(1, in)
	}
	return *m.text(2, output).text(3, output).text(4, op)
}

func weights(name string, raw []byte, dims ...int) message {
	var m message
	for _, n := range dims {
		m.number(1, n)
	}
	return *m.number(2, typeFloat).text(8, name).bytes(9, raw)
}

// port describes a table of numbers with any number of rows.
func port(name string, columns int) message {
	var rows, cols, shape, tensor, typ, m message
	rows.text(2, "rows")
	cols.number(1, columns)
	shape.bytes(1, rows).bytes(1, cols)
	tensor.number(1, typeFloat).bytes(2, shape)
	typ.bytes(1, tensor)
	return *m.text(1, name).bytes(2, typ)
}
