package dashboard

import (
	"bytes"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"path"
	"strings"
	"unicode/utf8"

	"tidemill.dev/api"
)

const (
	lookBytes   = 1 << 20  // bytes of a file that a page reads
	lookText    = 64 << 10 // characters of a text that a page shows
	lookRows    = 100      // rows of a table, and lines of JSON
	lookColumns = 50
	lookHex     = 256      // bytes of a binary file
	lookImage   = 16 << 20 // bytes of the largest image that a page shows
)

// look is what a page shows of a file: one of table, text, image or hex. Nothing of a file is ever
// shown as HTML.
type look struct {
	Kind    string // in words
	URL     string // address of the file in the API
	Commit  api.Commit
	Size    int64
	Note    string // says what is left out
	Columns []string
	Rows    [][]string
	Text    string
	Image   bool
	Hex     string
}

// lookInto decides by the bytes of a file how a page shows it. The name only says whether a text is
// CSV or JSON.
func lookInto(name string, begin []byte, size int64) *look {
	l := &look{Size: size}
	whole := int64(len(begin)) >= size
	switch media := http.DetectContentType(begin); {
	case media == "image/png" || media == "image/jpeg" || media == "image/gif" || media == "image/webp":
		l.showImage(media)
	case size == 0:
		l.Kind = "empty file"
	case !isText(begin, whole):
		l.showHex(begin)
	default:
		l.showText(name, begin, whole)
	}
	return l
}

func (l *look) showImage(media string) {
	l.Kind, l.Image = media, l.Size <= lookImage
	if !l.Image {
		l.Note = "The image is larger than " + size(int64(lookImage)) + ": download it to see it."
	}
}

func (l *look) showHex(begin []byte) {
	l.Kind = "binary"
	l.Hex = hex.Dump(begin[:min(len(begin), lookHex)])
	if l.Size > lookHex {
		l.Note = "The first 256 bytes."
	}
}

func (l *look) showText(name string, begin []byte, whole bool) {
	switch strings.ToLower(path.Ext(name)) {
	case ".csv":
		if l.showTable(begin, ',', whole) {
			return
		}
	case ".tsv":
		if l.showTable(begin, '\t', whole) {
			return
		}
	case ".jsonl", ".ndjson":
		l.showLines(begin)
		return
	case ".json":
		if whole && json.Valid(begin) && len(begin) <= lookText {
			l.Kind, l.Text = "JSON", indented(json.RawMessage(begin))
			return
		}
	}
	l.Kind, l.Text = "text", visible(string(begin), lookText)
	if !whole || utf8.RuneCount(begin) > lookText {
		l.Note = "The beginning of the file."
	}
}

// showTable shows the first rows. It reports false if the text is no table.
func (l *look) showTable(begin []byte, separator rune, whole bool) bool {
	r := csv.NewReader(bytes.NewReader(begin))
	r.Comma, r.FieldsPerRecord, r.LazyQuotes = separator, -1, true
	wide := false
	for len(l.Rows) < lookRows {
		row, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil || len(row) == 0 {
			return l.Columns != nil
		}
		wide = wide || len(row) > lookColumns
		row = row[:min(len(row), lookColumns)]
		if l.Columns == nil {
			l.Columns = row
			continue
		}
		l.Rows = append(l.Rows, row)
	}
	l.Kind = "table"
	switch {
	case len(l.Rows) == lookRows:
		l.Note = "The first 100 rows."
	case !whole:
		l.Note = "The beginning of the file."
	}
	if wide {
		l.Note = strings.TrimSpace(l.Note + " The first 50 columns.")
	}
	return l.Columns != nil
}

// showLines shows JSON with one value a line.
func (l *look) showLines(begin []byte) {
	l.Kind = "JSON lines"
	var b strings.Builder
	n := 0
	for line := range strings.Lines(string(begin)) {
		if n++; n > lookRows || b.Len() > lookText {
			l.Note = "The first lines."
			break
		}
		b.WriteString(line)
	}
	l.Text = visible(b.String(), lookText)
}

// isText reports whether bytes are UTF-8 without the control characters of binary files. The last
// character may be cut if the bytes are not the whole file.
func isText(b []byte, whole bool) bool {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			return !whole && len(b)-i < utf8.UTFMax
		}
		if r < ' ' && r != '\n' && r != '\r' && r != '\t' && r != '\f' && r != '\x1b' {
			return false
		}
		i += n
	}
	return true
}
