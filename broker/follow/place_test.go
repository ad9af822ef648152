package follow

import (
	"encoding/base64"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev/broker"
)

func TestTokenKeepsAPlace(t *testing.T) {
	t.Parallel()
	for _, p := range []Place{{}, {0}, {Beginning}, {5, Beginning, 7}, {math.MaxInt64, Beginning, 0, math.MaxInt64}} {
		token := p.Token("events")
		got, err := ParseToken(token, "events")
		if err != nil || !slices.Equal(got, p) {
			t.Errorf("%v became %v, %v", p, got, err)
		}
		if strings.Trim(token, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			t.Errorf("%s does not travel in a URL as it is", token)
		}
	}
}

// A token comes with every event and returns in a header; servers limit headers to about
// ten thousand bytes.
func TestTokenIsShort(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	for parts, most := range map[int]int{1: 20, 12: 68, 64: 290, 1000: 4100} {
		p := make(Place, parts)
		for i := range p {
			p[i] = 1_000_000_000 + r.Int64N(100_000)
		}
		token := p.Token("events")
		t.Logf("%d partitions: %d letters", parts, len(token))
		if len(token) > most {
			t.Errorf("a place in %d partitions takes %d letters, want %d at most", parts, len(token), most)
		}
	}
}

func TestTokenOfAnother(t *testing.T) {
	t.Parallel()
	good := Place{1, 2, 3}.encode("events")
	text := base64.RawURLEncoding.EncodeToString
	newer := slices.Clone(good)
	newer[0] = 9
	for name, c := range map[string]struct{ token, says string }{
		"another stream": {Place{1}.Token("facts"), "not a place in stream events"},
		"newer":          {text(newer), "of version 9"},
		"nothing":        {"", "as it was given"},
		"no base64":      {"!!!", "as it was given"},
		"padded":         {base64.URLEncoding.EncodeToString(append(good, 0)), "as it was given"},
		"cut short":      {text(good[:len(good)-1]), "as it was given"},
		"too long":       {text(append(slices.Clone(good), 0)), "as it was given"},
		"no count":       {text(good[:1+nameSum]), "as it was given"},
		"a huge count":   {text(append(slices.Clone(good[:1+nameSum]), 0xff, 0xff, 0xff, 0xff, 0x0f)), "as it was given"},
		"below 0":        {text(append(slices.Clone(good[:1+nameSum]), 1, 3)), "as it was given"}, // -2
		"padded varint":  {text(append(slices.Clone(good[:1+nameSum]), 1, 0x82, 0)), "as it was given"},
	} {
		if p, err := ParseToken(c.token, "events"); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
}

func FuzzToken(f *testing.F) {
	for _, p := range []Place{{}, {0, 1, 2}, {Beginning, math.MaxInt64}} {
		f.Add(p.Token("events"))
	}
	f.Add("AQ")
	f.Fuzz(func(t *testing.T, token string) {
		p, err := ParseToken(token, "events")
		if err != nil {
			return
		}
		for _, offset := range p {
			if offset < Beginning {
				t.Fatalf("offset %d", offset)
			}
		}
		// Each place has exactly one token, although base64 has spare bits that a decoder
		// may ignore.
		again, err := ParseToken(p.Token("events"), "events")
		if err != nil || !slices.Equal(again, p) {
			t.Fatalf("%v became %v, %v", p, again, err)
		}
	})
}

func TestParseFrom(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]broker.Start{
		"beginning":            broker.Earliest(),
		"end":                  broker.Latest(),
		"17":                   broker.AtOffset(17),
		"-1h":                  broker.Since(now.Add(-time.Hour)),
		"-1h30m":               broker.Since(now.Add(-90 * time.Minute)),
		"-2d":                  broker.Since(now.Add(-48 * time.Hour)),
		"2026-01-30T12:00:00Z": broker.Since(now.Add(-24 * time.Hour)),
		"-65535d":              broker.Earliest(),
		"1969-12-31T23:59:59Z": broker.Earliest(),
		"0001-01-01T00:00:00Z": broker.Earliest(),
	} {
		if got, err := ParseFrom(text, now); err != nil || got != want {
			t.Errorf("ParseFrom(%s) = %v, %v, want %v", text, got, err, want)
		}
	}
	for text, says := range map[string]string{
		"begining": `"begining" is not a position in a stream: give beginning`, "": "give beginning", "-x": "-x is not a time ago", "--1h": "time ago",
		"-5": "time ago", "-99999999999h": "time ago", "-70000d": "time ago", "2026-13-01T00:00:00Z": "give beginning", "99999999999999999999": "give beginning",
	} {
		if _, err := ParseFrom(text, now); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("ParseFrom(%s) gave %v, want %q", text, err, says)
		}
	}
}
