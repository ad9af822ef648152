// Package evaluate computes from a classifier's predictions how good it is.
package evaluate

import (
	"fmt"
	"io"

	"tidemill.dev"
)

// Predictions are what predictions.csv holds, counted.
type Predictions struct {
	Own      *tidemill.Figures
	Champion *tidemill.Figures  // nil without its column, or if nothing stands there
	Lead     *tidemill.Estimate // of our accuracy over the champion's; nil without it
	Notes    []string           // what a reader of the figures should know
}

// FileName is what the trainer calls the file.
const FileName = "predictions.csv"

// FileError says why a predictions.csv cannot be counted. Other errors of Read
// are of the reader: the same file may be counted the next time.
type FileError struct {
	Line   int // from 1; 0 if the whole file is meant
	Reason string
}

// Error is for people.
func (e *FileError) Error() string {
	if e.Line == 0 {
		return FileName + " " + e.Reason
	}
	return fmt.Sprintf("%s line %d: %s", FileName, e.Line, e.Reason)
}

func badFile(format string, args ...any) error {
	return &FileError{Reason: fmt.Sprintf(format, args...)}
}

func badLine(line int, format string, args ...any) error {
	return &FileError{Line: line, Reason: fmt.Sprintf(format, args...)}
}

const (
	maxRows = 10_000_000
	// maxLabels bounds the classes: a matrix of more tells nobody anything.
	maxLabels = 2_000
	// maxCells bounds what a report holds. Only a bad classifier of very many
	// classes and rows comes near.
	maxCells = 200_000
	maxLabel = 500 // bytes
)

// Read counts a predictions.csv. It has a header with the columns truth and
// predicted and perhaps champion, in any order, and a row an example; other
// columns are passed over, and blanks around a label are none of it. An empty
// cell of predicted or champion is no answer, and wrong. A champion without any
// answer is none.
func Read(from io.Reader) (Predictions, error) {
	t, err := newTable(from)
	if err != nil {
		return Predictions{}, err
	}
	c := newCount()
	for c.rows < maxRows {
		r, err := t.next()
		if err == io.EOF {
			return c.predictions()
		}
		if err == nil {
			err = c.add(r)
		}
		if err != nil {
			return Predictions{}, err
		}
	}
	if _, err := t.next(); err == nil {
		return Predictions{}, badFile("has more than %d rows; a sample of them measures as well", maxRows)
	}
	return c.predictions()
}
