package filter

import (
	"strings"
	"testing"
)

// An event may have a megabyte of attributes, and any reader of a stream may send an expression.
// Without a limit an expression of 16 KiB keeps a core busy for tens of seconds with each event.
func TestCompileForRefusesWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	const most = 64 << 20
	many := func(n int, of, with string) string { return strings.Repeat(of+with, n-1) + of }
	within := func(n int, x string) string { return strings.Repeat("UPPER(", n) + x + strings.Repeat(")", n) }
	for where, want := range map[string]bool{
		"type = 'new-data' AND subject LIKE 'bot-%'":                                           true,
		"subject LIKE '%" + strings.Repeat("a", 15_000) + "%'":                                 true,
		"subject LIKE '" + strings.Repeat("a", 7_000) + "%" + strings.Repeat("b", 7_000) + "'": true,
		many(100, "subject LIKE 'eu-%-shop-_-%-x'", " OR "):                                    true,
		many(150, "LOWER(TRIM(subject)) = 'a'", " OR "):                                        true,
		many(700, "subject = 'bot-1'", " OR "):                                                 true,
		"subject IN (" + many(3000, "'a'", ",") + ")":                                          true,
		"LENGTH(" + many(50, "CONCAT(subject, source)", ") > 1 OR LENGTH(") + ") = 1":          true,

		"subject LIKE '%" + strings.Repeat("a", 7_000) + "b_" + strings.Repeat("a", 7_000) + "%'":              false,
		many(50, "subject LIKE '%_"+strings.Repeat("a", 200)+"b%'", " OR "):                                    false,
		"NOT (" + many(20, "LENGTH("+within(90, "CONCAT("+many(15, "subject", ",")+")")+") = 1", " OR ") + ")": false,
		"'x' IN (" + many(2, within(90, "CONCAT("+many(15, "subject", ",")+")"), ",") + ")":                    false,
		// This expression is evaluated at compile time.
		"CONCAT_WS('" + strings.Repeat("a", 4000) + "'" + strings.Repeat(",''", 250) + ") LIKE '%" + strings.Repeat("a", 4000) + "_b%'": false,
	} {
		f, err := CompileFor(where, most)
		if (err == nil) != want || (f != nil) != want {
			t.Errorf("%.80s… is compiled: %t, %v", where, f != nil, err)
		}
		if err != nil && !strings.Contains(err.Error(), "too long") {
			t.Errorf("%.80s…: %v", where, err)
		}
	}
	if _, err := CompileFor("subject LIKE", most); err == nil || !strings.Contains(err.Error(), "column 13") {
		t.Errorf("half an expression: %v", err)
	}
}
