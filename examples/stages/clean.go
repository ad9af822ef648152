package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// chatLine is a line of a chat in the chat server's log.
type chatLine struct {
	From   string `json:"from"` // customer, bot or agent
	Text   string `json:"text"`
	Intent string `json:"intent"` // intent that an agent has given; empty if none has
}

// cleanChats makes a file of messages from each file of chats. A repeated message is kept only
// once, in the file whose name comes first. So a file with a later name does not change the results
// of earlier files.
func cleanChats(in, out string, log io.Writer) error {
	paths, err := listFiles(in, ".jsonl")
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, path := range paths {
		lines, err := readLines(path)
		if err != nil {
			return err
		}
		var kept []message
		for _, l := range lines {
			m, use := l.message()
			if key := strings.ToLower(m.text); use && !seen[key] {
				seen[key] = true
				kept = append(kept, m)
			}
		}
		fmt.Fprintf(log, "%s: %d lines, %d messages kept\n", baseName(path), len(lines), len(kept))
		if err := writeMessages(filepath.Join(out, baseName(path)+".csv"), kept); err != nil {
			return err
		}
	}
	return nil
}

func readLines(path string) (all []chatLine, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows := bufio.NewScanner(f)
	for n := 1; rows.Scan(); n++ {
		var l chatLine
		if err := json.Unmarshal(rows.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("read %s line %d: %w", path, n, err)
		}
		all = append(all, l)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return all, nil
}

// Personal data must not be in the training data.
var (
	address = regexp.MustCompile(`[\w.+-]+@[\w-]+(\.[\w-]+)+`)
	number  = regexp.MustCompile(`\d{4,}`)
)

// message returns the message of a line, and whether it can be used for training.
func (l chatLine) message() (m message, use bool) {
	text := address.ReplaceAllString(l.Text, "MAIL")
	text = number.ReplaceAllString(text, "NUMBER")
	text = strings.Join(strings.Fields(text), " ")
	return message{text, l.Intent}, l.From == "customer" && l.Intent != "" && text != ""
}
