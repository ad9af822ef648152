package infer

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
)

// The layout of a file on the disk: what it is, the artifact, model.yaml and
// model.onnx, each behind its length, and the SHA-256 of all that.
const (
	layout  = "tidemill model 1\n"
	lengths = 8
)

var errTorn = errors.New("it is not what was written")

// encode makes the parts of a file. The model is not copied.
func encode(artifact string, f files) [][]byte {
	head := []byte(layout)
	for _, part := range [][]byte{[]byte(artifact), f.card} {
		head = binary.BigEndian.AppendUint64(head, uint64(len(part)))
		head = append(head, part...)
	}
	head = binary.BigEndian.AppendUint64(head, uint64(len(f.model)))
	h := sha256.New()
	h.Write(head)
	h.Write(f.model)
	return [][]byte{head, f.model, h.Sum(nil)}
}

// decode takes a file apart, which must be as it was written, of that artifact.
func decode(data []byte, artifact string) (f files, err error) {
	if len(data) < len(layout)+sha256.Size || !bytes.HasPrefix(data, []byte(layout)) {
		return f, errTorn
	}
	body, sum := data[:len(data)-sha256.Size], data[len(data)-sha256.Size:]
	if is := sha256.Sum256(body); !bytes.Equal(is[:], sum) {
		return f, errTorn
	}
	rest := body[len(layout):]
	var name []byte
	for _, part := range []*[]byte{&name, &f.card, &f.model} {
		if len(rest) < lengths {
			return f, errTorn
		}
		n := binary.BigEndian.Uint64(rest)
		if rest = rest[lengths:]; n > uint64(len(rest)) {
			return f, errTorn
		}
		*part, rest = rest[:n:n], rest[n:]
	}
	if string(name) != artifact || len(rest) > 0 {
		return f, errTorn
	}
	return f, nil
}
