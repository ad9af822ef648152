package tidemill

import (
	"strings"
	"testing"
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
	for name, want := range map[string][2]string{"intent/bot-42": {"intent/bot-42", ""}, "m@7": {"m", "7"}, "m@champion": {"m", "champion"}, "a/b@newest": {"a/b", "newest"}} {
		if m, which, err := CutVersionName(name); err != nil || m != want[0] || which != want[1] {
			t.Errorf("%s: %s, %s, %v", name, m, which, err)
		}
	}
	for _, name := range []string{"", "@7", "m@", "m@0", "m@07", "m@-1", "m@best", "m@1@2", "A B@1"} {
		if _, _, err := CutVersionName(name); err == nil {
			t.Errorf("%q is a name", name)
		}
	}
}
