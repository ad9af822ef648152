package chaos

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// journal is a log of a child's actions, one per line: nanoseconds, a verb, words. A line is one
// write, so every line is complete, except perhaps the last.
type journal struct{ f *os.File }

func openJournal(dir, name string) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, name+".journal"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	return &journal{f}, err
}

// note writes a line. A child that cannot write its journal must not go on.
func (j *journal) note(verb string, words ...any) {
	line := fmt.Appendf(nil, "%d %s", time.Now().UnixNano(), verb)
	for _, w := range words {
		line = fmt.Append(append(line, ' '), w)
	}
	if _, err := j.f.Write(append(line, '\n')); err != nil {
		fmt.Fprintln(os.Stderr, "journal:", err)
		os.Exit(3)
	}
}

// entry is one line of a journal.
type entry struct {
	at    time.Time
	name  string // name of the child
	life  int
	verb  string
	words []string
}

// readJournals reads the journals whose name begins with a prefix. Names are role-index.life.
func readJournals(dir, prefix string) ([]entry, error) {
	files, err := filepath.Glob(filepath.Join(dir, prefix+"*.journal"))
	var all []entry
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		all = append(all, parseJournal(strings.TrimSuffix(filepath.Base(f), ".journal"), raw)...)
	}
	return all, err
}

func parseJournal(file string, raw []byte) []entry {
	name, life := file, 0
	if who, n, ok := strings.Cut(file, "."); ok {
		name = who
		_, _ = fmt.Sscan(n, &life)
	}
	raw = raw[:bytes.LastIndexByte(raw, '\n')+1]
	var all []entry
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		words := strings.Fields(lines.Text())
		var ns int64
		if _, err := fmt.Sscan(words[0], &ns); err == nil && len(words) > 1 {
			all = append(all, entry{time.Unix(0, ns), name, life, words[1], words[2:]})
		}
	}
	return all
}
