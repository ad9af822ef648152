package config

import (
	"regexp"
	"strings"
	"testing"
)

// A shape accepts the same texts as an expression with the bound in it, at the bounds and
// around them.
func TestShapesAreTheirExpressions(t *testing.T) {
	for what, c := range map[string]struct {
		fits func(string) bool
		as   string
		of   []string // characters for the tested texts
	}{
		"a caller":      {callerName.fits, `^[A-Za-z0-9][A-Za-z0-9._@-]{0,99}$`, []string{"a", "a@", "@", "ä"}},
		"a host":        {hostName.fits, `^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})$`, []string{"a", "a.", ".", "a b"}},
		"a variable":    {variable.fits, `^[A-Za-z_][A-Za-z0-9_]{0,199}$`, []string{"A", "A1", "1", "Ä"}},
		"an attribute":  {attributeName.fits, `^[a-z0-9]{1,40}$`, []string{"a", "1", "A"}},
		"an input":      {inputName.fits, `^[^\x00-\x1f\x7f]{1,200}$`, []string{"a", "ä", " ", "\t", "\xff"}},
		"a key":         {plainKey.fits, `^[A-Za-z0-9_-]{1,60}$`, []string{"a", "-", "."}},
		"a secret":      {isSecret, `^[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?/[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}$`, []string{"a/", "/a", "a/b/", "/"}},
		"a secret's":    {func(s string) bool { return isSecret("a/" + s) }, `^[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}$`, []string{"a", "a.", "."}},
		"a secret of a": {func(s string) bool { return isSecret(s + "/a") }, `^[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?$`, []string{"a", "a.", "aa.", ".a"}},
	} {
		whole, taken := regexp.MustCompile(c.as), 0
		for _, of := range c.of {
			for n := range 270 {
				text := strings.Repeat(of, n/len(of)+1)[:n]
				if c.fits(text) != whole.MatchString(text) {
					t.Errorf("%s: %q fits: %t, and %s takes it: %t", what, text, c.fits(text), c.as, !c.fits(text))
				}
				if c.fits(text) {
					taken++
				}
			}
		}
		if what != "a secret" && taken < 10 {
			t.Errorf("%s: %d texts were taken: this shows nothing", what, taken)
		}
	}
}
