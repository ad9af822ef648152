package main

import (
	"encoding/binary"
	"errors"
)

// protoFields are an encoded message of a protocol buffer, such as an ONNX file: a list of fields,
// each with a number and a kind.
type protoFields []byte

// These are the kinds of fields in this file.
const (
	kindNumber = 0
	kindBytes  = 2
)

func (f *protoFields) number(field int, n int) {
	*f = binary.AppendUvarint(*f, uint64(field)<<3|kindNumber)
	*f = binary.AppendUvarint(*f, uint64(n))
}

func (f *protoFields) bytes(field int, b []byte) {
	*f = binary.AppendUvarint(*f, uint64(field)<<3|kindBytes)
	*f = binary.AppendUvarint(*f, uint64(len(b)))
	*f = append(*f, b...)
}

func (f *protoFields) text(field int, s string) { f.bytes(field, []byte(s)) }

// addMessage writes a message as a field.
func (f *protoFields) addMessage(field int, fill func(*protoFields)) {
	var inner protoFields
	fill(&inner)
	f.bytes(field, inner)
}

var errCut = errors.New("a field is cut off, or of a kind that is not written here")

// eachField calls the function got for each field. A number is in n, and any other value is in b.
func (f protoFields) eachField(got func(field, n int, b protoFields) error) error {
	for len(f) > 0 {
		tag, a := binary.Uvarint(f)
		if a <= 0 {
			return errCut
		}
		value, b := binary.Uvarint(f[a:])
		if b <= 0 {
			return errCut
		}
		f = f[a+b:]
		var inner protoFields
		switch tag & 7 {
		case kindNumber:
		case kindBytes:
			if value > uint64(len(f)) {
				return errCut
			}
			inner, f = f[:value], f[value:]
		default:
			return errCut
		}
		if err := got(int(tag>>3), int(value), inner); err != nil {
			return err
		}
	}
	return nil
}
