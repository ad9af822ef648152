package main

import (
	"slices"
	"testing"
)

// Each bad line has its plain form next to it.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		kind      kind
		rule      string
		bad, good string
	}{
		{comment, "who or what as a noun", "What is given away is a reference.", "The caller gets a reference."},
		{comment, "who or what as a noun", "It is told by who asks.", "The caller names the reason."},
		{documentation, "who or what as a noun", "The index has a row for what it read.", "What does it do?"},
		{comment, "whoever, nobody, somebody", "Nobody reads it any more.", "No process reads it any more."},
		{comment, "whoever, nobody, somebody", "Whoever holds the lock closes it.", "The holder of the lock closes it."},
		{comment, "stands or lies for is", "The record lies in the third segment.", "The record is in the third segment."},
		{comment, "stands or lies for is", "The name stands in the table.", "The table has the name."},
		{comment, "behind for after, beside for next to", "The marker follows behind the batch.", "The marker follows the batch."},
		{comment, "behind for after, beside for next to", "The lock is beside the file.", "The lock is next to the file."},
		{comment, "behind for after, beside for next to", "The records that came before them.", "It flushes before it closes the file."},
		{comment, "old idiom", "The group is joined anew.", "The member joins the group again."},
		{comment, "old idiom", "In vain for ten seconds.", "No answer for ten seconds."},
		{comment, "old idiom", "A number that is no class.", "There is no class for this number."},
		{comment, "old idiom", "It is a module of its own.", "Each tier has limits of its own kind."},
		{comment, "old idiom", "The lease is theirs no more.", "The lease is no longer theirs."},
		{comment, "tells or told for reports", "The fact tells of a run.", "The fact describes a run."},
		{comment, "tells or told for reports", "The caller is told why.", "The caller gets the reason."},
		{logMessage, "private word", "the keeper has the lease", "controller: lost the lease; stopping"},
		{commandText, "private word", "The event is absorbed by a run.", "The event is merged into a run."},
		{commandText, "metaphor or idiom in a message", "Clients come through its door.", "Clients call its gateway."},
		{commandText, "metaphor or idiom in a message", "Clients, and what speaks HTTP, find it.", "There is no client."},
		{commandText, "metaphor or idiom in a message", "The log and /readyz say so.", "The log and /readyz report it."},
		{commandText, "metaphor or idiom in a message", "No run of it is meant.", "No run of it matches."},
		{logMessage, "metaphor or idiom in a message", "config: it is no list", "config: it is not a list"},
		{summary, "a summary is a verb and its object", "have a schedule not tick", "pause a schedule until resumed"},
		{summary, "a summary is a verb and its object", "the runs of a recipe", "list the runs of a recipe"},
		{documentation, "more than 25 words",
			"One two three four five six seven eight nine ten one two three four five six seven eight nine ten one two three four five six.",
			"One two three four five six seven eight nine ten."},
	} {
		if !breaks(c.kind, c.bad, c.rule) {
			t.Errorf("%s %q does not break %q", c.kind, c.bad, c.rule)
		}
		if all := findings(clause{kind: c.kind, text: c.good}); len(all) > 0 {
			t.Errorf("%s %q breaks %v", c.kind, c.good, all)
		}
	}
}

func breaks(k kind, text, rule string) bool {
	return slices.ContainsFunc(findings(clause{kind: k, text: text}), func(f finding) bool { return f.rule == rule })
}

func TestFragments(t *testing.T) {
	for text, want := range map[string]bool{
		"of those that wait":               true,
		"what the caller gave":             true,
		"offset of the last applied fact":  false,
		"nil if the stream has no parents": false,
	} {
		if got := isFragment(clause{kind: fieldComment, text: text}); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if isFragment(clause{kind: comment, text: "of those that wait"}) {
		t.Error("a whole comment is not a field's")
	}
}

const goFile = `// Package x has two words.
package x

import "log/slog"

//go:noinline
// F sends the events. It returns when
// Kafka has them:
//
//	F() // which is an example of code
//
// The last clause is here.
func F(log *slog.Logger) {
	n := 1 // number of events in flight
	log.Warn("ledger: catch-up failed; retrying", "err", n)
	use("a name of " + "several words", ` + "`one line of text\nanother line of text`" + `)
	Command{Short: "pause a schedule for now"}
	regexp("(a b c d|e f g h)")
}
`

func TestClausesOfGo(t *testing.T) {
	want := []clause{
		{"x.go", 1, 1, comment, "Package x has two words."},
		{"x.go", 7, 7, comment, "F sends the events."},
		{"x.go", 7, 8, comment, "It returns when Kafka has them:"},
		{"x.go", 12, 12, comment, "The last clause is here."},
		{"x.go", 14, 14, fieldComment, "number of events in flight"},
		{"x.go", 16, 16, otherText, "a name of several words"},
		{"x.go", 16, 17, otherText, "one line of text another line of text"},
		{"x.go", 18, 18, summary, "pause a schedule for now"},
	}
	got := clausesIn("x.go", []byte(goFile))
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got := clausesIn("cmd/x/main.go", []byte(goFile)); got[len(got)-2].kind != commandText {
		t.Errorf("a text of a command is %v", got[len(got)-2])
	}
	if got := clausesIn("x_test.go", []byte(goFile)); len(got) != 5 {
		t.Errorf("a test's texts are read: %v", got)
	}
}

const document = "# Pausing a schedule again\n\nFirst sentence is this. Second `code is` left out\nand ends here.\n" +
	"```sh\nnot a sentence of prose\n```\n- an item of a list\n- another item of it\n\n| a cell of a table | short |\n"

func TestClausesOfOtherFiles(t *testing.T) {
	for file, c := range map[string]struct {
		text string
		want []clause
	}{
		"x.md": {document, []clause{
			{"x.md", 1, 1, documentation, "Pausing a schedule again"},
			{"x.md", 3, 3, documentation, "First sentence is this."},
			{"x.md", 3, 4, documentation, "Second CODE left out and ends here."},
			{"x.md", 8, 8, documentation, "- an item of a list"},
			{"x.md", 9, 9, documentation, "- another item of it"},
			{"x.md", 11, 11, documentation, "a cell of a table"},
		}},
		"x.yaml": {"# Two lines of\n# one comment.\nname: x # of this one key\n", []clause{
			{"x.yaml", 1, 2, comment, "Two lines of one comment."},
			{"x.yaml", 3, 3, comment, "of this one key"},
		}},
		"x.bin": {"Two words and two.", nil},
	} {
		if got := clausesIn(file, []byte(c.text)); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v\nwant %v", file, got, c.want)
		}
	}
}

func TestAddedLines(t *testing.T) {
	added := addedLines("diff --git a/x.go b/x.go\n--- a/x.go\n+++ b/x.go\n@@ -1,2 +3,2 @@\n-a\n+b\n+c\n@@ -9,0 +11 @@ func\n+d\n@@ -20,2 +21,0 @@\n-e\n")
	for line, want := range map[int]bool{2: false, 3: true, 4: true, 5: false, 11: true, 21: false} {
		if c := (clause{file: "x.go", line: line, end: line}); c.isIn(added) != want {
			t.Errorf("line %d: %v", line, !want)
		}
	}
	if c := (clause{file: "y.go", line: 1, end: 1}); c.isIn(added) {
		t.Error("an unchanged file has no added lines")
	}
	if c := (clause{file: "new.go", line: 1, end: 1}); !c.isIn(map[string]map[int]bool{"new.go": nil}) {
		t.Error("all lines of a new file are added")
	}
}

func TestLimits(t *testing.T) {
	o := options{tree: 3, added: 1, fragments: 30}
	none, some := count{0, 100}, count{2, 100}
	for _, c := range []struct {
		tree, fresh, strict, fragments count
		fails                          bool
	}{
		{tree: some, fresh: none},
		{tree: count{4, 100}, fails: true},
		{tree: some, fresh: some, fails: true},
		{tree: some, strict: count{1, 10}, fails: true},
		{tree: some, fragments: count{4, 10}, fails: true},
	} {
		if err := o.verdict(c.tree, c.fresh, c.strict, c.fragments); (err != nil) != c.fails {
			t.Errorf("%v: %v", c, err)
		}
	}
}
