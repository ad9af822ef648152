package onnx

import (
	"errors"
	"fmt"

	"tidemill.dev/internal/infer/tensor"
)

// What things take in memory, roughly, beside what they hold.
const (
	textSize      = 16
	nodeSize      = 256
	attributeSize = 320
	tensorSize    = 256
	specSize      = 128
)

// A model may take this many times its file and a little more: a list of numbers
// that are all 0 grows eightfold when it is read, and the smallest node by more.
const (
	growth = 16
	grant  = 1 << 20
)

// reader reads one file.
type reader struct {
	left  int // of the memory that it may still take
	model *Model
}

// Read reads a file. It fails for one that is cut off, lies about its sizes, or
// would need more memory than a few times its own size.
func Read(data []byte) (*Model, error) {
	r := &reader{left: grant + growth*len(data), model: &Model{
		Opsets: map[string]int64{}, Weights: map[string]*tensor.Tensor{}, Metadata: map[string]string{},
	}}
	var graphs int
	err := fields(data, func(f field) error {
		if f.number == 7 {
			graphs++
		}
		return r.part(f)
	})
	if err == nil && graphs == 0 {
		err = errors.New("it has no graph: is it an ONNX file?")
	}
	if err == nil {
		err = r.model.order()
	}
	if err != nil {
		return nil, fmt.Errorf("read ONNX model: %w", err)
	}
	return r.model, nil
}

// take accounts for memory that is about to be made.
func (r *reader) take(n int) error {
	if n > r.left {
		return errors.New("it would need far more memory than its size: it is damaged, or was made to harm")
	}
	r.left -= n
	return nil
}

// part is a field of the file.
func (r *reader) part(f field) (err error) {
	switch f.number {
	case 1:
		r.model.IR, err = f.integer()
	case 7:
		return r.graph(f)
	case 8:
		return r.opset(f)
	case 14:
		return r.metadata(f)
	case 25:
		return r.function(f)
	}
	return err
}

func (r *reader) opset(f field) error {
	var name string
	var version int64
	err := r.each(f, func(f field) (err error) {
		switch f.number {
		case 1:
			name, err = r.text(f)
		case 2:
			version, err = f.integer()
		}
		return err
	})
	r.model.Opsets[domain(name)] = version
	return err
}

func (r *reader) metadata(f field) error {
	var key, value string
	err := r.each(f, func(f field) (err error) {
		switch f.number {
		case 1:
			key, err = r.text(f)
		case 2:
			value, err = r.text(f)
		}
		return err
	})
	r.model.Metadata[key] = value
	return err
}

func (r *reader) function(f field) error {
	var name, home string
	err := r.each(f, func(f field) (err error) {
		switch f.number {
		case 1:
			name, err = r.text(f)
		case 10:
			home, err = r.text(f)
		}
		return err
	})
	r.model.Functions = append(r.model.Functions, domain(home)+"."+name)
	return err
}

// each walks over a message that is a field, which takes a little memory itself.
func (r *reader) each(f field, each func(field) error) error {
	b, err := f.message()
	if err == nil {
		err = r.take(specSize)
	}
	if err != nil {
		return err
	}
	return fields(b, each)
}
