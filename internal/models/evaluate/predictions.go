// Package evaluate computes how good a classifier is from its predictions.
package evaluate

import (
	"fmt"
	"io"

	"tidemill.dev"
)

// Predictions holds the figures of a predictions.csv.
type Predictions struct {
	Own      *tidemill.Figures
	Champion *tidemill.Figures  // nil if its column is missing or empty
	Lead     *tidemill.Estimate // our accuracy minus the champion's; nil without a champion
	Notes    []string           // remarks for a reader of the figures
}

// FileName is the name of the file that the trainer writes.
const FileName = "predictions.csv"

// FileError reports why a predictions.csv cannot be counted. Other errors of Read come from the
// reader: the same file may be counted the next time.
type FileError struct {
	Line   int // number from 1; 0 means the whole file
	Reason string
}

// Error returns the reason after the file's name and the line.
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
	// maxLabels limits the classes, because a larger matrix is of no use.
	maxLabels = 2_000
	// maxCells limits the size of a report. Only a bad classifier of very many classes and rows
	// comes near.
	maxCells = 200_000
	maxLabel = 500 // length in bytes
)

// Read counts a predictions.csv. It has a header with the columns truth and predicted, and
// optionally champion, in any order, and a row for each example. Other columns are ignored, and so
// are spaces around a label. An empty cell of predicted or champion means no answer, and counts as
// wrong. A champion without any answer is left out.
func Read(from io.Reader) (Predictions, error) {
	t, err := newTable(from)
	if err != nil {
		return Predictions{}, err
	}
	c := newCount()
	for c.rows < maxRows {
		r, err := t.nextRow()
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
	if _, err := t.nextRow(); err == nil {
		return Predictions{}, badFile("has more than %d rows; a sample of them measures as well", maxRows)
	}
	return c.predictions()
}
