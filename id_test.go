package tidemill

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"testing/quick"

	"github.com/cloudevents/sdk-go/v2/event"
)

// Logs that are read for ever contain such ids, so they must never change.
func TestIDGolden(t *testing.T) {
	for _, c := range []struct {
		want  string
		parts []string
	}{
		{"4oymiquy7qobjgx36tejs35zeq", nil},
		{"v5kxb5nbqefxv54mv5f4octgb4", []string{""}},
		{"g5dqr77xogo5lf46zb25k3gsfb", []string{"", ""}},
		{"hmmw7veqppw7khbqsduygxzpps", []string{"a"}},
		{"maovi5xczt7czb5cxot2gitfs4", []string{"ab", "c"}},
		{"h6x2dtzpdgt4ceu35mqm6cmd64", []string{"a", "bc"}},
		{"yneuzincz6hoxcqr33jrn62vxa", []string{"abc"}},
		{"vbviwghi55g6nko3tdlvjtkibg", []string{"/tidemill/prod/train", "1", "run"}},
		{"po6azok3srk5axj776up5o2e5x", []string{"https://crm.example/bots", "ä-\x00-€"}},
		{"gzuaocus7frgplb5ffhpvzhunv", []string{strings.Repeat("x", 1000)}},
	} {
		if got := ID(c.parts...); got != c.want {
			t.Errorf("ID(%.60q) = %s, want %s", c.parts, got, c.want)
		}
	}
}

// The hashed bytes can be read back to the same parts. So two lists of parts never have
// the same bytes, even if their texts joined together are the same.
func TestPartsCannotCollide(t *testing.T) {
	readsBack := func(parts []string) bool {
		return slices.Equal(readParts(appendParts(nil, parts...)), parts)
	}
	if err := quick.Check(readsBack, nil); err != nil {
		t.Error(err)
	}
	cutElsewhere := func(s string, i, j uint8) bool {
		a, b := int(i)%(len(s)+1), int(j)%(len(s)+1)
		return a == b || ID(s[:a], s[a:]) != ID(s[:b], s[b:])
	}
	if err := quick.Check(cutElsewhere, nil); err != nil {
		t.Error(err)
	}
}

func readParts(b []byte) []string {
	var parts []string
	for len(b) > 0 {
		n := binary.BigEndian.Uint64(b)
		parts = append(parts, string(b[8:8+n]))
		b = b[8+n:]
	}
	return parts
}

func TestIDShape(t *testing.T) {
	fits := func(parts []string) bool {
		id := ID(parts...)
		return len(id) == idLength && strings.Trim(id, base32Lower) == ""
	}
	if err := quick.Check(fits, nil); err != nil {
		t.Error(err)
	}
}

func TestDerive(t *testing.T) {
	e := event.New()
	e.SetSource("/tidemill/prod/train")
	e.SetID("1")
	c := CauseOf(e)
	if got, want := c.Derive("run"), ID("/tidemill/prod/train", "1", "run"); got != want {
		t.Errorf("Derive = %s, want %s", got, want)
	}
	if c.Derive("run") == c.Derive("run", "") || c.Derive() == c.Derive("run") {
		t.Error("two purposes have one id")
	}
}
