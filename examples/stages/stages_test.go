package main

import (
	"bytes"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// runStage runs a stage on files, and returns its output files.
func runStage(t *testing.T, name string, in map[string]string) map[string]string {
	t.Helper()
	from, to := filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "out")
	for _, dir := range []string{filepath.Join(from, "input"), to} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range in {
		if err := os.WriteFile(filepath.Join(from, "input", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	if err := run([]string{name}, variables(from, to), &log); err != nil {
		t.Fatalf("%s: %v\n%s", name, err, &log)
	}
	return folder(t, to)
}

func variables(in, out string) func(string) string {
	return func(name string) string { return map[string]string{"TIDEMILL_IN": in, "TIDEMILL_OUT": out}[name] }
}

func folder(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(text)
	}
	return all
}

func TestClean(t *testing.T) {
	t.Parallel()
	got := runStage(t, "clean", map[string]string{
		"a.jsonl": `{"from": "customer", "text": "  where is\tmy order 123456? ", "intent": "track"}
{"from": "bot", "text": "let me look", "intent": "track"}
{"from": "customer", "text": "thanks"}
{"from": "customer", "text": " ", "intent": "track"}
{"from": "customer", "text": "mail me, <ada@mail.example>, in 14 days", "intent": "human"}
`,
		"b.jsonl": `{"from": "customer", "text": "WHERE is my order 77777?", "intent": "track"}
`,
		"c.jsonl": `{"from": "customer", "text": "where is my order 77777?", "intent": "track"}
{"from": "customer", "text": "refund", "intent": "refund"}
`,
		"notes.txt": "of no matter",
	})
	want := map[string]string{
		"a.csv": "text,intent\nwhere is my order NUMBER?,track\n\"mail me, <MAIL>, in 14 days\",human\n",
		"c.csv": "text,intent\nrefund,refund\n",
	}
	if !maps.Equal(got, want) {
		t.Errorf("it makes %q", got)
	}
}

// A message stays on its side, whatever its file and the other messages are.
func TestSplit(t *testing.T) {
	t.Parallel()
	var rows, more strings.Builder
	for i := range 500 {
		line := "message " + strings.Repeat("x", i) + ",a\n"
		more.WriteString(line)
		if i%3 == 0 {
			rows.WriteString(line)
		}
	}
	few := runStage(t, "split", map[string]string{"week.csv": "text,intent\n" + rows.String()})
	all := runStage(t, "split", map[string]string{"week.csv": "text,intent\n" + more.String(), "one.csv": "text,intent\nrefund,b\n"})
	for _, file := range []string{"train-week.csv", "held-out-week.csv"} {
		later := slices.Collect(strings.Lines(all[file]))
		for line := range strings.Lines(few[file]) {
			if !slices.Contains(later, line) {
				t.Errorf("%q has left %s", line, file)
			}
		}
	}
	if n := strings.Count(all["held-out-week.csv"], "\n") - 1; n < 60 || n > 140 {
		t.Errorf("%d of 500 are held out", n)
	}
	if len(all) != 3 {
		t.Errorf("it makes %q", slices.Sorted(maps.Keys(all)))
	}
}

// With the example's chats, a third week adds a file to each dataset and changes no other. A week
// of repeated messages adds nothing.
func TestLaterWeeks(t *testing.T) {
	t.Parallel()
	raw := folder(t, filepath.Join("raw", "bot-shop"))
	before := runStage(t, "clean", raw)
	maps.Copy(raw, folder(t, filepath.Join("later", "same")))
	if same := runStage(t, "clean", raw); !maps.Equal(before, same) {
		t.Errorf("a week of repetitions changes %v", slices.Sorted(maps.Keys(same)))
	}
	maps.Copy(raw, folder(t, filepath.Join("later", "more")))
	after := runStage(t, "clean", raw)
	wantMore(t, before, after, "week-3.csv")
	wantMore(t, runStage(t, "split", before), runStage(t, "split", after), "held-out-week-3.csv", "train-week-3.csv")
	if text := after["week-3.csv"]; strings.Contains(text, "@") || strings.Count(text, "\n") < 40 {
		t.Errorf("week 3 is %s", text)
	}
}

func wantMore(t *testing.T, before, after map[string]string, more ...string) {
	t.Helper()
	var added []string
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if text, there := before[name]; !there {
			added = append(added, name)
		} else if after[name] != text {
			t.Errorf("%s is another", name)
		}
	}
	if !slices.Equal(added, more) || len(after) != len(before)+len(more) {
		t.Errorf("%v of %d is added", added, len(after))
	}
}

func TestWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ stage, file, text, says string }{
		"no files":     {"clean", "a.txt", "", "no files .jsonl"},
		"no JSON":      {"clean", "a.jsonl", "{}\n{", "a.jsonl line 2"},
		"a long line":  {"clean", "a.jsonl", strings.Repeat("x", 1<<20), "token too long"},
		"columns":      {"split", "a.csv", "text,intent\na\n", "a.csv: record on line 2"},
		"other stages": {"train", "a.csv", "", `no stage "train"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := t.TempDir()
			if err := os.WriteFile(filepath.Join(in, c.file), []byte(c.text), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := run([]string{c.stage}, variables(in, t.TempDir()), io.Discard); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("it says %v", err)
			}
		})
	}
	if err := run([]string{"clean"}, variables("", ""), io.Discard); err == nil || !strings.Contains(err.Error(), "find TIDEMILL_IN") {
		t.Errorf("without variables: %v", err)
	}
}
