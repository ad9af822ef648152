package tidemill

import (
	"strings"
	"testing"
)

// Names are used in folders and URLs unchanged, so characters with a meaning there are refused.
func TestCheckDataset(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "bots/bot-42", "eu/de/7", "a.b", "Shop_7", "ana@example.com", "a:b", "a+b=c", "-a", "__", "a/_b", "a..b", strings.Repeat("x", maxDataset)} {
		if err := CheckDataset(name); err != nil {
			t.Errorf("%q %v", name, err)
		}
	}
	for name, why := range map[string]string{
		"": "is empty", strings.Repeat("x", maxDataset+1): "longer than",
		"/": "without a name", "/a": "without a name", "a/": "without a name", "a//b": "without a name",
		".": "begins with a dot", "..": "begins with a dot", "a/..": "begins with a dot", "../a": "begins with a dot", "a/./b": "begins with a dot", ".git": "begins with a dot",
		"_": "reserved", "a/_/b": "reserved", "a/_": "reserved",
		"a b": "' '", "a\x00": `'\x00'`, "a\n": `'\n'`, `a\b`: `'\\'`, "a%2fb": "'%'", "a?b": "'?'", "a#b": "'#'", "{key}": "'{'", "ü": "'ü'", "a\u2024b": "'\u2024'", "a\xff": "'�'", "a*": "'*'", "~": "'~'", "$HOME": "'$'",
	} {
		if err := CheckDataset(name); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q %v, want %q", name, err, why)
		}
	}
}
