package infer

import "tidemill.dev/internal/infer/tensor"

// Model is a version that is ready to answer. It is safe for concurrent use until
// it is released.
type Model struct {
	ref     Ref
	popular uint64 // what its uses are counted under
	held    *entry
}

// Ref is what it was loaded as. It must not be changed.
func (m *Model) Ref() *Ref { return &m.ref }

// Engine is the name of the engine that runs it.
func (m *Model) Engine() string { return m.held.engine }

// Inputs are what it wants, in the order of Run's.
func (m *Model) Inputs() []tensor.Spec { return m.held.inputs }

// Outputs are what it answers.
func (m *Model) Outputs() []tensor.Spec { return m.held.outputs }

// Labels are those of model.yaml, or of the file's metadata; nil if there are none.
func (m *Model) Labels() []string { return m.held.labels }

// MaxRows is how many rows it takes at once; 0 is as many as one likes.
func (m *Model) MaxRows() int { return m.held.rows }

// Run answers; see native.Program.
func (m *Model) Run(in, out []tensor.Tensor) error { return m.held.program.Run(in, out) }

// Whole is an error if the outputs do not have an answer for each of so many rows.
// Ask it before Answer.
func (m *Model) Whole(out []tensor.Tensor, rows int) error { return m.held.whole(out, rows) }

// Answer is what a row of the outputs says.
func (m *Model) Answer(out []tensor.Tensor, row int) Answer { return m.held.answer(out, row) }

// Release gives it back.
func (m *Model) Release() { m.held.release() }
