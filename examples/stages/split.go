package main

import (
	"encoding/csv"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// splitMessages divides the messages of each file: four fifths for training, one fifth for
// measuring. Only the text of a message decides, so that a message is always in the same part. So
// no model is measured by a message that an earlier model was trained on.
func splitMessages(in, out string, log io.Writer) error {
	paths, err := listFiles(in, ".csv")
	if err != nil {
		return err
	}
	for _, path := range paths {
		all, err := readMessages(path)
		if err != nil {
			return err
		}
		var learn, held []message
		for _, m := range all {
			if heldOut(m.text) {
				held = append(held, m)
			} else {
				learn = append(learn, m)
			}
		}
		fmt.Fprintf(log, "%s: %d to learn from, %d held out\n", baseName(path), len(learn), len(held))
		if err := writeMessages(filepath.Join(out, "train-"+baseName(path)+".csv"), learn); err != nil {
			return err
		}
		if err := writeMessages(filepath.Join(out, "held-out-"+baseName(path)+".csv"), held); err != nil {
			return err
		}
	}
	return nil
}

func heldOut(text string) bool {
	h := fnv.New32a()
	_, _ = io.WriteString(h, strings.ToLower(text)) // a hash returns no error
	return h.Sum32()%5 == 0
}

func readMessages(path string) (all []message, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows := csv.NewReader(f)
	rows.FieldsPerRecord = 2
	table, err := rows.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	for _, row := range table[min(1, len(table)):] {
		all = append(all, message{row[0], row[1]})
	}
	return all, nil
}

// writeMessages writes no file if there are no messages. Then there is no commit, and no later
// stage starts.
func writeMessages(path string, all []message) error {
	if len(all) == 0 {
		return nil
	}
	rows := [][]string{{"text", "intent"}}
	for _, m := range all {
		rows = append(rows, []string{m.text, m.intent})
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := csv.NewWriter(f).WriteAll(rows); err != nil {
		f.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	return f.Close()
}
