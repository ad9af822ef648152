package filter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tidemill.dev/broker"
)

func where(t testing.TB, text string) *Filter {
	t.Helper()
	f, err := Compile(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestIndex(t *testing.T) {
	t.Parallel()
	rules := []Rule{
		0:  {},
		1:  {Types: []string{"a"}},
		2:  {Types: []string{"a", "b", "a"}, Where: where(t, "subject = 'x'")},
		3:  {Where: where(t, "type = 'a' AND subject LIKE 'x%'")},
		4:  {Where: where(t, "type IN ('a', 'b') AND 'x' = subject")},
		5:  {Types: []string{"a"}, Where: where(t, "type = 'b'")}, // matches nothing
		6:  {Types: []string{"b"}, Where: where(t, "subject = 'x' OR subject = 'y'")},
		7:  {Where: where(t, "subject IN ('x', 'y', 'x') AND branch = 'main'")},
		8:  {Where: where(t, "subject = 'x' AND subject = 'y'")}, // matches nothing
		9:  {Where: where(t, "missing = 1")},
		10: {Types: []string{"a"}, Where: where(t, "subject = 'x'")},
		11: {Where: where(t, "TRUE")},
		12: {Where: where(t, "NOT EXISTS branch")},
		13: {Where: where(t, "(type = 'a' AND subject = 'x') OR branch = 'main'")},
		14: {Types: []string{"specversion"}, Where: where(t, "specversion = '1.0'")},
	}
	x := NewIndex(rules)
	for _, c := range []struct {
		view broker.View
		want []int
	}{
		{broker.View{Type: "a", Subject: "x"}, []int{0, 1, 2, 3, 4, 10, 11, 12, 13}},
		{broker.View{Type: "a"}, []int{0, 1, 11, 12}},
		{broker.View{Type: "b", Subject: "x", Extensions: []broker.Attribute{{Name: "branch", Value: "main"}}}, []int{0, 2, 4, 6, 7, 11, 13}},
		{broker.View{Type: "b", Subject: "y"}, []int{0, 6, 11, 12}},
		{broker.View{Type: "c"}, []int{0, 11, 12}},
		{broker.View{Type: "specversion"}, []int{0, 11, 12, 14}},
	} {
		if got := x.Match(&c.view, []int{-1}); !slices.Equal(got[1:], c.want) || got[0] != -1 {
			t.Errorf("%s %q: %v, want %v", c.view.Type, c.view.Subject, got, c.want)
		}
	}
	if got := NewIndex(nil).Match(&broker.View{Type: "a"}, nil); len(got) != 0 {
		t.Errorf("no rules want %v", got)
	}
}

// The index gives the same result as evaluating every rule.
func TestIndexAsksEveryRule(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	part := func() string {
		return pick("subject", "branch", "type", "number") + pick(" = 'a'", " = 'b'", " IN ('a', 'c')", " != 'a'", " LIKE 'a%'", " = 1", " = TRUE") + pick("", "", "", " OR number = 1", " OR number = '1'", " OR subject = 'a' AND branch = 'b'")
	}
	for range 300 {
		var rules []Rule
		for range 1 + r.IntN(40) {
			rule := Rule{}
			for range r.IntN(3) {
				rule.Types = append(rule.Types, pick("a", "b", "c"))
			}
			if text := part(); r.IntN(4) > 0 {
				for range r.IntN(3) {
					text = "(" + text + ") AND (" + part() + ")"
				}
				rule.Where = where(t, text)
			}
			rules = append(rules, rule)
		}
		x := NewIndex(rules)
		for range 20 {
			v := &broker.View{Type: pick("a", "b", "c", "d"), Subject: pick("", "a", "b", "true")}
			for _, name := range []string{"branch", "number"} {
				if r.IntN(3) > 0 {
					v.Extensions = append(v.Extensions, broker.Attribute{Name: name, Value: pick("a", "b", "1", "")})
				}
			}
			var want []int
			for i, rule := range rules {
				if (len(rule.Types) == 0 || slices.Contains(rule.Types, v.Type)) && (rule.Where == nil || rule.Where.Match(v)) {
					want = append(want, i)
				}
			}
			if got := x.Match(v, nil); !slices.Equal(got, want) {
				t.Fatalf("the index says %v of %+v, and the rules say %v", got, *v, want)
			}
		}
	}
}

// thousand returns sets of a thousand triggers for one type, like those of users.
func thousand() map[string]func(i int) string {
	return map[string]func(i int) string{
		"a subject each": func(i int) string { return fmt.Sprintf("subject = 'bot-%d'", i) },
		"a prefix each":  func(i int) string { return fmt.Sprintf("subject LIKE 'bot-%d-%%'", i) },
		"a branch and more": func(i int) string {
			return fmt.Sprintf("branch = 'main' AND dataset LIKE 'shops/%d/%%' AND subject != 'x'", i)
		},
		"a few alternatives": func(i int) string { return fmt.Sprintf("subject = 'bot-%d' OR dataset = 'bots/%d'", i, i) },
		"a condition each": func(i int) string {
			return fmt.Sprintf("(type = 'new-data' AND dataset = 'bots/%d') OR subject IN ('a', 'bot-%d')", i, i)
		},
		"two prefixes each": func(i int) string { return fmt.Sprintf("subject LIKE 'bot-%d-%%' OR dataset LIKE 'bots/%d/%%'", i, i) },
		"a text within":     func(i int) string { return fmt.Sprintf("dataset LIKE '%%shop-%d%%'", i) },
		"one for all":       func(int) string { return "type = 'new-data' AND subject LIKE 'bot-%'" },
	}
}

func sample() *broker.View {
	return &broker.View{ID: "1", Source: "/x", Type: "new-data", Subject: "bot-42", Time: "2026-01-31T12:00:00Z", DataContentType: "application/json",
		Extensions: []broker.Attribute{{Name: "dataset", Value: "bots/42"}, {Name: "branch", Value: "main"}, {Name: "commit", Value: "c0ffee"}}}
}

func indexOf(t testing.TB, text func(i int) string) *Index {
	rules := make([]Rule, 1000)
	for i := range rules {
		rules[i] = Rule{Types: []string{"new-data"}, Where: where(t, text(i))}
	}
	return NewIndex(rules)
}

func TestMatchingAllocatesNothing(t *testing.T) {
	v, room := sample(), make([]int, 0, 1000)
	for name, text := range thousand() {
		x := indexOf(t, text)
		if n := testing.AllocsPerRun(100, func() { room = x.Match(v, room[:0]) }); n != 0 {
			t.Errorf("an index of %s makes %v allocations", name, n)
		}
	}
	for _, text := range everyday() {
		f := where(t, text)
		if n := testing.AllocsPerRun(100, func() { f.Match(v) }); n != 0 {
			t.Errorf("%s makes %v allocations", text, n)
		}
	}
}

// everyday returns conditions like those of usual filters.
func everyday() []string {
	return []string{"type = 'new-data' AND subject LIKE 'bot-%'", "subject != 'x'", "NOT (subject = 'x' OR missing = 'y')", "subject LIKE '%4_'", "subject IN ('a', 'bot-42')",
		"subject IN ('1', '2', '3', '4', '5', '6', '7', '8', '9', '10')", "EXISTS branch AND NOT EXISTS missing", "missing = 'x'", "commit = 5", "branch = TRUE", "LENGTH(subject) = 6",
		"LEFT(subject, 3) = 'bot'", "INT(commit) > 3", "commit < 3", "subject = branch", "TRUE XOR EXISTS branch", "dataset LIKE 'bots/%' AND branch = 'main'", "SUBSTRING(subject, 5) = 42"}
}

func BenchmarkMatch(b *testing.B) {
	f, v := where(b, "type = 'new-data' AND subject LIKE 'bot-%'"), sample()
	b.ReportAllocs()
	for b.Loop() {
		if !f.Match(v) {
			b.Fatal("no match")
		}
	}
}

func BenchmarkIndexThousand(b *testing.B) {
	v := sample()
	for name, text := range thousand() {
		b.Run(name, func(b *testing.B) {
			x, room := indexOf(b, text), make([]int, 0, 1000)
			b.ReportAllocs()
			for b.Loop() {
				room = x.Match(v, room[:0])
			}
		})
	}
	b.Run("other types", func(b *testing.B) {
		rules := make([]Rule, 1000)
		for i := range rules {
			rules[i] = Rule{Types: []string{fmt.Sprint("type-", i)}}
		}
		x, room := NewIndex(rules), make([]int, 0, 1000)
		b.ReportAllocs()
		for b.Loop() {
			room = x.Match(v, room[:0])
		}
	})
}
