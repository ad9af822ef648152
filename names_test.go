package tidemill

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"testing/quick"

	"github.com/cloudevents/sdk-go/v2/event"
)

func TestNames(t *testing.T) {
	n, err := NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	for got, want := range map[string]string{
		n.Install():                    "prod",
		n.Topic(Parked("a.b")):         "prod.a.b.parked",
		n.Group("dispatch.events"):     "prod.dispatch.events",
		n.Transactional("score.x", 3):  "prod.score.x.3",
		n.Key("repeats", "1", "{a.b}"): "prod:repeats:1:{a.b}",
		n.Source("clock"):              "/tidemill/prod/clock",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if s, ok := n.Stream("prod.a.b"); !ok || s != "a.b" {
		t.Errorf("Stream = %q, %t", s, ok)
	}
	if s, ok := n.Stream("production.a"); ok {
		t.Errorf("another install's topic is stream %q", s)
	}
}

func TestNewNamesRefuses(t *testing.T) {
	if n, err := NewNames(""); err != nil || n.Install() != DefaultName {
		t.Errorf("NewNames(\"\") = %v, %v", n, err)
	}
	for _, bad := range []string{"Prod", "a.b", "-a", "a-", "a_b", "ä", "a b", "a\x00", strings.Repeat("a", 41)} {
		if _, err := NewNames(bad); err == nil {
			t.Errorf("NewNames(%q) is accepted", bad)
		}
	}
}

func TestCheckStream(t *testing.T) {
	long := strings.Repeat("a", 40)
	for _, good := range []string{"a", "messages", "a.b-c.1", long, Parked(long), Parked("a.b")} {
		if err := CheckStream(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", ".", "a.", ".a", "a..b", "A", "a_b", "a/b", long + "a", strings.Repeat("a.", 60) + "a"} {
		if err := CheckStream(bad); err == nil {
			t.Errorf("CheckStream(%q) is accepted", bad)
		}
	}
}

func TestParked(t *testing.T) {
	if s, ok := CutParked(Parked("messages")); !ok || s != "messages" {
		t.Errorf("CutParked = %q, %t", s, ok)
	}
	if s, ok := CutParked("parked"); ok {
		t.Errorf("CutParked(parked) = %q", s)
	}
}

func TestReservedStreams(t *testing.T) {
	for stream, reserved := range map[string]bool{
		"": false, StreamEvents: false, "messages": false, "parked": false,
		StreamFacts: true, StreamProgress: true, StreamDeadLetters: true, StreamCommands: true, StreamClock: true, StreamGroupOffsets: true, Parked("messages"): true, Parked(StreamEvents): true,
	} {
		if err := ReservedStream(stream); (err != nil) != reserved {
			t.Errorf("%q: %v", stream, err)
		}
	}
}

func TestBookmarked(t *testing.T) {
	for stream, marks := range map[string]bool{StreamEvents: false, StreamFacts: false, StreamCommands: false, StreamClock: true, Parked(StreamEvents): true} {
		if Bookmarked(stream) != marks {
			t.Errorf("%q is taken for the other", stream)
		}
	}
}

func TestNamesOfAttempts(t *testing.T) {
	t.Parallel()
	run := RunID("intent", "bot-42", Cause{Source: "/shop", ID: "e"})
	if again := RunID("intent", "bot-42", Cause{Source: "/shop", ID: "e"}); again != run || RunID("intent", "bot-4", Cause{Source: "/shop", ID: "2e"}) == run {
		t.Errorf("%s and %s", run, again)
	}
	if got, n, ok := CutAttemptName(AttemptName(run, 12)); got != run || n != 12 || !ok {
		t.Errorf("%s, %d, %v", got, n, ok)
	}
	for _, bad := range []string{"", "-1", "a", "a-", "a-0", "a-01", "a-+1", "a--1", "a-b-1", "a-99999999999999999999"} {
		if run, n, ok := CutAttemptName(bad); ok {
			t.Errorf("%q is attempt %d of %q", bad, n, run)
		}
	}
}

func TestNamesOfVersions(t *testing.T) {
	for name, want := range map[string][2]string{"intent/bot-42": {"intent/bot-42", ""}, "m@7": {"m", "7"}, "m@champion": {"m", "champion"}, "a/b@newest": {"a/b", "newest"},
		"intent/ana@example.com": {"intent/ana@example.com", ""}, "intent/ana@example.com@7": {"intent/ana@example.com", "7"}, "m@1@2": {"m@1", "2"}, "m@-1": {"m@-1", ""}, "m@1@": {"m@1", ""}, "m@@": {"m@", ""}} {
		if m, which, err := CutVersionName(name); err != nil || m != want[0] || which != want[1] {
			t.Errorf("%s: %s, %s, %v", name, m, which, err)
		}
	}
	for _, name := range []string{"", "@", "@7", "m@", "m@0", "m@07", "A B@1", "m@99999999999999999999"} {
		if _, _, err := CutVersionName(name); err == nil {
			t.Errorf("%q is a name", name)
		}
	}
}

// A model whose name ends like that of a version has another name that means it.
func TestNamesOfWholeModels(t *testing.T) {
	for model, want := range map[string]string{"intent/bot-42": "intent/bot-42", "intent/ana@example.com": "intent/ana@example.com", "m@3": "m@3@", "m@champion": "m@champion@", "m@0": "m@0@", "m@": "m@@"} {
		name := WholeName(model)
		if m, which, err := CutVersionName(name); name != want || m != model || which != "" || err != nil {
			t.Errorf("%s is %s, which means %s, %q, %v", model, name, m, which, err)
		}
	}
}

func TestRefsOfDatasets(t *testing.T) {
	for text, want := range map[string][2]string{"bots/bot-42": {"bots/bot-42", ""}, "bots/bot-42@main": {"bots/bot-42", "main"}, "bots/bot-42@": {"bots/bot-42", ""},
		"bots/ana@example.com": {"bots/ana@example.com", ""}, "bots/ana@example.com@3k7m": {"bots/ana@example.com", "3k7m"}} {
		dataset, ref, found := CutDatasetRef(text)
		if dataset != want[0] || ref != want[1] || found != (dataset != text) {
			t.Errorf("%s: %s, %s, %t", text, dataset, ref, found)
		}
	}
}

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
