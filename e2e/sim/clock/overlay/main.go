// Command overlay writes copies of Tidemill's files that ask package clock for the time, and prints
// the file for go test -overlay.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	module = "tidemill.dev/"
	sim    = module + "e2e/sim"
	clock  = sim + "/clock"
)

// asks are the functions that depend on the time.
var asks = []string{"time.Now", "time.Since", "time.Until", "time.AfterFunc", "context.WithDeadline"}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: overlay FOLDER")
		os.Exit(2)
	}
	file, err := write(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "overlay:", err)
		os.Exit(1)
	}
	fmt.Println(file)
}

// write writes the copies into a folder, and returns the file that lists them.
func write(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "list", "-deps", "-test", "-f", `{{if .Module}}{{if .Module.Main}}{{$p := .}}{{range .GoFiles}}{{$p.ImportPath}} {{$p.Dir}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}`, sim).Output()
	if err != nil {
		return "", fmt.Errorf("list the packages of a world: %w", err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return "", err
	}
	replaced := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(path, sim) {
			continue
		}
		text, err := rewrite(file)
		if err != nil {
			return "", err
		}
		if text == "" {
			continue
		}
		to := filepath.Join(dir, fmt.Sprintf("%d-%s.txt", len(replaced), filepath.Base(file))) // with .go it would be a file of a package
		if err := os.WriteFile(to, []byte(text), 0o644); err != nil {
			return "", err
		}
		replaced[file] = to
	}
	if len(replaced) == 0 {
		return "", errors.New("no file of a world asks for the time")
	}
	list, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, list, 0o644)
}

// rewrite returns a file with its questions for the time changed, or nothing if it has none. Lines
// keep their numbers.
func rewrite(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
	if err != nil {
		return "", err
	}
	var at []int // where the names of packages stand, which package clock replaces
	length := map[int]int{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && slices.Contains(asks, x.Name+"."+s.Sel.Name) {
			offset := set.Position(x.Pos()).Offset
			at, length[offset] = append(at, offset), len(x.Name)
		}
		return true
	})
	if len(at) == 0 {
		return "", nil
	}
	slices.Sort(at)
	var b strings.Builder
	from := set.Position(parsed.Name.End()).Offset
	b.Write(text[:from])
	b.WriteString("; import simclock " + strconv.Quote(clock))
	for _, offset := range at {
		b.Write(text[from:offset])
		b.WriteString("simclock")
		from = offset + length[offset]
	}
	b.Write(text[from:])
	for _, i := range parsed.Imports { // an import may have no other use
		switch i.Path.Value {
		case `"time"`:
			b.WriteString("\nvar _ time.Time\n")
		case `"context"`:
			b.WriteString("\nvar _ context.Context\n")
		}
	}
	return b.String(), nil
}
