package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// message is the text of a customer, and its intent.
type message struct{ text, intent string }

// botMessages are the messages of one bot. The model never learns from the messages that measure
// it.
type botMessages struct{ learn, held []message }

// heldOut is the beginning of the names of files with such messages.
const heldOut = "held-out"

// readData reads all CSV files below a folder, in the order of their names.
func readData(folder string) (d botMessages, err error) {
	err = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".csv" {
			return err
		}
		some, err := readMessages(path)
		if strings.HasPrefix(e.Name(), heldOut) {
			d.held = append(d.held, some...)
		} else {
			d.learn = append(d.learn, some...)
		}
		return err
	})
	if err == nil && (len(d.learn) == 0 || len(d.held) == 0) {
		err = fmt.Errorf("there are %d messages to learn from and %d in files %s*.csv below %s: both are needed", len(d.learn), len(d.held), heldOut, folder)
	}
	return d, err
}

// readMessages reads a file with the columns text and intent.
func readMessages(path string) (all []message, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows := csv.NewReader(f)
	for {
		row, err := rows.Read()
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		line, _ := rows.FieldPos(0)
		switch {
		case line == 1 && (len(row) != 2 || strings.TrimPrefix(row[0], "\ufeff") != "text" || row[1] != "intent"):
			return nil, fmt.Errorf("read %s: its columns are %q, and have to be text,intent", path, row)
		case line == 1:
			continue
		case row[1] == "" || !utf8.ValidString(row[0]) || !utf8.ValidString(row[1]):
			return nil, fmt.Errorf("read %s line %d: it has no intent, or is not UTF-8", path, line)
		}
		all = append(all, message{row[0], row[1]})
	}
}
