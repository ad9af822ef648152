// Package evaluate computes how good a classifier is from its predictions.
package evaluate

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

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

const (
	columnTruth     = "truth"
	columnPredicted = "predicted"
	columnChampion  = "champion"

	// maxRow limits a row, because an unclosed quote makes a whole file one row.
	maxRow = 1 << 20
	// maxNamed limits how many columns an error names.
	maxNamed = 10
)

// row is the content of one line.
type row struct {
	line                       int
	truth, predicted, champion string
}

// table reads the rows of a file, one at a time.
type table struct {
	csv                        *csv.Reader
	rowLimit                   *rowLimit
	truth, predicted, champion int // indexes of columns; champion is -1 if there is none
	line                       int // line on which the newest row begins
}

// rowLimit lets a reader read a limited number of bytes, until the limit is set again.
type rowLimit struct {
	from io.Reader
	left int
}

var errRow = errors.New("the row is too long")

// Read is the method of io.Reader.
func (f *rowLimit) Read(p []byte) (int, error) {
	if f.left == 0 {
		return 0, errRow
	}
	n, err := f.from.Read(p[:min(len(p), f.left)])
	f.left -= n
	return n, err
}

func newTable(from io.Reader) (*table, error) {
	in := bufio.NewReader(from)
	if mark, _ := in.Peek(3); bytes.Equal(mark, []byte("\xef\xbb\xbf")) {
		_, _ = in.Discard(3) // byte order mark
	}
	f := &rowLimit{from: in}
	t := &table{csv: csv.NewReader(f), rowLimit: f}
	t.csv.ReuseRecord, t.csv.TrimLeadingSpace = true, true
	header, err := t.readRecord()
	switch {
	case err == io.EOF:
		return nil, badFile("is empty; its first line names the columns, truth and predicted among them")
	case err != nil:
		return nil, err
	}
	t.line = 1
	return t, t.columns(header)
}

// columns finds the columns that are used.
func (t *table) columns(header []string) error {
	var names []string
	for _, name := range header {
		names = append(names, strings.ToLower(strings.TrimSpace(name)))
	}
	t.truth, t.predicted, t.champion = slices.Index(names, columnTruth), slices.Index(names, columnPredicted), slices.Index(names, columnChampion)
	for i, name := range names {
		if (name == columnTruth || name == columnPredicted || name == columnChampion) && slices.Index(names, name) != i {
			return badLine(1, "the column %s occurs twice; keep one", name)
		}
	}
	for _, c := range []struct {
		name string
		at   int
	}{{columnTruth, t.truth}, {columnPredicted, t.predicted}} {
		if c.at < 0 {
			return badLine(1, "there is no column %s; %s", c.name, missingColumn(names))
		}
	}
	return nil
}

// missingColumn describes a header that lacks a column.
func missingColumn(names []string) string {
	for _, separator := range []struct{ text, name string }{{";", "semicolons"}, {"\t", "tabs"}, {"|", "bars"}} {
		if len(names) == 1 && strings.Contains(names[0], separator.text) {
			return "its columns are separated by " + separator.name + ": write commas"
		}
	}
	shown := fmt.Sprintf("%.300q", names[:min(len(names), maxNamed)])
	return "the header names " + strings.Trim(shown, "[]")
}

// readRecord returns the next line's cells. An error of the file is a *FileError.
func (t *table) readRecord() ([]string, error) {
	t.rowLimit.left = maxRow
	cells, err := t.csv.Read()
	var wrong *csv.ParseError
	switch {
	case err == nil, err == io.EOF:
		return cells, err
	case errors.Is(err, errRow):
		return nil, badLine(t.line+1, "the row is longer than %d KiB; is a quote not closed?", maxRow>>10)
	case errors.Is(err, csv.ErrFieldCount):
		errors.As(err, &wrong)
		return nil, badLine(wrong.Line, "it has %d cells and the header has %d; a label with a comma needs quotes", len(cells), t.csv.FieldsPerRecord)
	case errors.As(err, &wrong):
		return nil, badLine(wrong.Line, "%v, in column %d; a label with a quote needs quotes around it, and the quote doubled", wrong.Err, wrong.Column)
	}
	return nil, fmt.Errorf("read %s: %w", FileName, err)
}

// nextRow returns the next row; io.EOF after the last.
func (t *table) nextRow() (row, error) {
	cells, err := t.readRecord()
	if err != nil {
		return row{}, err
	}
	t.line, _ = t.csv.FieldPos(0)
	r := row{line: t.line, truth: label(cells[t.truth]), predicted: label(cells[t.predicted])}
	if t.champion >= 0 {
		r.champion = label(cells[t.champion])
	}
	return r, nil
}

func label(cell string) string { return strings.ToValidUTF8(strings.TrimSpace(cell), "\uFFFD") }
