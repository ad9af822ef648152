package deadletters

import (
	"encoding/base64"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

var (
	lay  = broker.Position{Stream: "events", Partition: 3, Offset: 41}
	when = time.Date(2026, 11, 20, 3, 0, 0, 5, time.UTC)
)

func install(t *testing.T) tidemill.Names {
	t.Helper()
	n, err := tidemill.NewNames("prod")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func original() broker.View {
	return broker.View{ID: "42", Source: "/shop", Type: "bot-created", Subject: "bot-42", DataContentType: "text/plain", Data: []byte("hé\x00llo"),
		Key: []byte("bot-42"), Foreign: []broker.Header{{Key: "b3", Value: []byte{0xff}}},
		Extensions: []broker.Attribute{{Name: "traceparent", Value: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, {Name: "hops", Value: "3"}}}
}

func details() Details {
	return Details{Trigger: "tell-crm", Group: "prod.triggers.events", Reason: "the subscriber answered 500", Tried: 12,
		Attempts: []Attempt{
			{At: when, Took: 1200 * time.Millisecond, Error: "connection refused"},
			{At: when.Add(time.Second), Took: 3 * time.Second, Status: 500, Error: "500 Internal Server Error", Answer: "no\x07\nroom"}},
		Destination: "https://user:hunter2@crm.example/hooks?token=hunter2#hunter2"}
}

func made(t *testing.T, v broker.View, d Details) broker.View {
	t.Helper()
	got, err := New(install(t), lay, &v, d, when)
	if err != nil {
		t.Fatal(err)
	}
	if err := got.Validate(); err != nil {
		t.Fatalf("the letter is no event: %v", err)
	}
	return got
}

func TestALetterHoldsAllThatIsKnown(t *testing.T) {
	was := original()
	v := made(t, was, details())
	want := map[string]string{
		"type": tidemill.TypeEventDeadLettered, "source": "/tidemill/prod/dispatcher", "subject": "bot-42", "trigger": "tell-crm", "hops": "3",
		"causationid": "42", "causationsource": "/shop", "correlationid": "42", "traceparent": was.Extensions[0].Value,
		"knativeerrordest": "https://crm.example/hooks", "knativeerrorcode": "500",
		"knativeerrordata": base64.StdEncoding.EncodeToString([]byte("no\x07\nroom")),
	}
	for name, value := range want {
		if got, _ := v.Attribute(name); got != value {
			t.Errorf("%s is %q, not %q", name, got, value)
		}
	}
	if string(v.Key) != "bot-42" {
		t.Errorf("its key is %q", v.Key)
	}
	if strings.Contains(string(v.Data), "hunter2") {
		t.Error("it tells a secret")
	}
	l, err := Read(&v)
	if err != nil {
		t.Fatal(err)
	}
	if l.Place() != lay || l.Last != 41 || l.Tried != 12 || l.OriginalID != "42" || l.OriginalType != "bot-created" || !reflect.DeepEqual(l.Attempts, details().Attempts) {
		t.Errorf("it says %+v", l)
	}
	back, err := l.Original()
	if err != nil || !reflect.DeepEqual(back, was) {
		t.Errorf("the event in it is %+v (%v), not %+v", back, err, was)
	}
}

func TestALetterIsNamedAfterItsCause(t *testing.T) {
	base := made(t, original(), details())
	again, err := New(install(t), lay, new(original()), Details{Trigger: "tell-crm", Reason: "another"}, when.Add(time.Hour))
	if err != nil || again.ID != base.ID {
		t.Errorf("written again it is %s (%v), not %s", again.ID, err, base.ID)
	}
	other, replayed := details(), details()
	other.Trigger, replayed.Replay = "tell-erp", "act-1"
	elsewhere, err := New(install(t), broker.Position{Stream: "events", Partition: 3, Offset: 42}, new(original()), details(), when)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{base.ID: true}
	for _, v := range []broker.View{made(t, original(), other), made(t, original(), replayed), elsewhere} {
		if seen[v.ID] {
			t.Errorf("two letters are called %s", v.ID)
		}
		seen[v.ID] = true
	}
}

func TestAnEventTooLargeIsLeftWhereItLies(t *testing.T) {
	was := original()
	was.Data = make([]byte, 7<<20)
	v := made(t, was, details())
	l, err := Read(&v)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Original(); !errors.Is(err, ErrNoRecord) || !strings.Contains(l.Reason, "read it from its stream") {
		t.Errorf("of %d bytes it says %q: %v", len(was.Data), l.Reason, err)
	}
	if len(v.Data) > MaxBytes {
		t.Errorf("it has %d bytes", len(v.Data))
	}
}

func TestWhatKnativeIsTold(t *testing.T) {
	long := strings.Repeat("ü", 2000)
	for name, c := range map[string]struct {
		details Details
		want    map[string]string
	}{
		"nothing":              {Details{Reason: "waited too long"}, map[string]string{}},
		"no answer":            {Details{Destination: "http://a.b", Attempts: []Attempt{{Error: "timeout"}}}, map[string]string{"knativeerrordest": "http://a.b"}},
		"a URL that is none":   {Details{Destination: "http://a b:c%"}, map[string]string{}},
		"only the last counts": {Details{Attempts: []Attempt{{Status: 500, Answer: "x"}, {Status: 404}}}, map[string]string{"knativeerrorcode": "404"}},
		"a long answer": {Details{Attempts: []Attempt{{Status: 400, Answer: long}}},
			map[string]string{"knativeerrorcode": "400", "knativeerrordata": base64.StdEncoding.EncodeToString([]byte(long[:768]))}},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string]string{}
			for _, x := range knative(c.details) {
				got[x.Name] = x.Value
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("it is told %v, not %v", got, c.want)
			}
			if n := len(got[knativeData]); n > 1024 {
				t.Errorf("the data has %d letters", n)
			}
		})
	}
}

func TestAReceiptFollowsFromLetterAndAct(t *testing.T) {
	letter := made(t, original(), details())
	resolved := func(r Receipt, at time.Time) broker.View {
		v, err := Resolved(install(t), &letter, r, at)
		if err == nil {
			err = v.Validate()
		}
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	replayed := resolved(Receipt{Partition: 2, Offset: 9, Action: Replayed, Outcome: FailedAgain, By: "ada", Command: "act-1", NewLetter: "other"}, when)
	want := map[string]string{"type": tidemill.TypeEventResolved, "source": "/tidemill/prod/dispatcher", "subject": "bot-42", "authid": "ada", "trigger": "tell-crm",
		"causationid": letter.ID, "causationsource": letter.Source, "correlationid": "42"}
	for name, value := range want {
		if got, _ := replayed.Attribute(name); got != value {
			t.Errorf("%s is %q, not %q", name, got, value)
		}
	}
	if r, err := ReadReceipt(&replayed); err != nil || *r != (Receipt{letter.ID, 2, 9, Replayed, FailedAgain, "", "ada", "act-1", "other"}) {
		t.Errorf("it says %+v, %v", r, err)
	}
	if again := resolved(Receipt{Action: Replayed, Outcome: Delivered, Command: "act-1"}, when.Add(time.Hour)); again.ID != replayed.ID {
		t.Error("the same act resolves the letter twice")
	}
	dropped := resolved(Receipt{Action: Dropped, Outcome: DroppedByAct, Reason: "a test", By: "ada"}, when)
	if dropped.ID == replayed.ID || dropped.Source != "/tidemill/prod/gateway" {
		t.Errorf("the drop is %s of %s", dropped.ID, dropped.Source)
	}
}

func TestWhatIsNoLetterIsNotRead(t *testing.T) {
	letter := made(t, original(), details())
	if _, err := ReadReceipt(&letter); err == nil {
		t.Error("a letter was read as a receipt")
	}
	if _, err := Read(new(original())); err == nil {
		t.Error("any event was read as a letter")
	}
	letter.Data = []byte(`{"attempts":[{"took":"long"}]}`)
	if _, err := Read(&letter); err == nil || !strings.Contains(err.Error(), "took") {
		t.Errorf("of a duration that is none it says %v", err)
	}
}

func TestOnlyLettersOfLettersAreOfLetters(t *testing.T) {
	letter := made(t, original(), details())
	ofLetter := made(t, letter, details())
	event := original()
	for name, c := range map[string]struct {
		v    *broker.View
		want bool
	}{"an event": {&event, false}, "its letter": {&letter, false}, "the letter's letter": {&ofLetter, true}} {
		if got := OfLetter(c.v); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A dead letter whose replay cannot be attempted is written again under a new id.
func TestALetterIsWrittenAgain(t *testing.T) {
	was := made(t, original(), details())
	again, err := Again(&was, "act", "it is too large", when.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	l, err := Read(&again)
	if err != nil {
		t.Fatal(err)
	}
	if again.ID == was.ID || l.Reason != "it is too large" || l.Replay != "act" || l.Trigger != "tell-crm" || l.Record == nil || len(l.Attempts) != 2 {
		t.Errorf("letter %s became %+v", was.ID, l)
	}
}

// A dead letter has the recipe of its event, and its receipt has it too. A recipe without keys uses its name as the
// key, and that name must give no right to the dead letter.
func TestTheRecipeDecidesTheOwner(t *testing.T) {
	for _, c := range []struct{ name, recipe, subject, owner string }{
		{"a recipe without keys", "bot-all", "bot-all", ""},
		{"a recipe with keys", "intent", "bot-42", "bot-42"},
		{"no recipe", "", "bot-42", "bot-42"},
	} {
		was := original()
		was.Type, was.Subject = tidemill.TypeRunFinished, c.subject
		if c.recipe != "" {
			was.Extensions = append(was.Extensions, broker.Attribute{Name: tidemill.AttrRecipe, Value: c.recipe})
		}
		letter := made(t, was, details())
		if got, _ := letter.Attribute(tidemill.AttrRecipe); got != c.recipe {
			t.Errorf("%s: the dead letter has the recipe %q, not %q", c.name, got, c.recipe)
		}
		old := letter
		old.Extensions = slices.DeleteFunc(slices.Clone(letter.Extensions), func(a broker.Attribute) bool { return a.Name == tidemill.AttrRecipe })
		for version, v := range map[string]broker.View{"": letter, ", of an earlier version": old, ", of a dead letter": made(t, letter, details()), ", of an old dead letter": made(t, old, details())} {
			l, err := Read(&v)
			if err != nil {
				t.Fatal(err)
			}
			receipt, err := Resolved(install(t), &v, Receipt{Action: Dropped}, when)
			if got, _ := receipt.Attribute(tidemill.AttrRecipe); err != nil || got != c.recipe {
				t.Errorf("%s%s: the receipt has the recipe %q (%v), not %q", c.name, version, got, err, c.recipe)
			}
			if e := EntryOf(lay, when, &v, l); e.Owner != c.owner || e.Key != c.subject {
				t.Errorf("%s%s: the owner is %q and the key %q, want %q and %q", c.name, version, e.Owner, e.Key, c.owner, c.subject)
			}
		}
	}
}

// Two dead letters of one event, replayed by one command, fail again as two.
func TestTheReplaysOfTwoLettersAreTwo(t *testing.T) {
	d := details()
	d.Replay, d.Letter = "act", "one"
	one := made(t, original(), d)
	d.Letter = "other"
	if other := made(t, original(), d); one.ID == other.ID {
		t.Error("they have one id")
	}
}
