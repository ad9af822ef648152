package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
)

// testTriggers is testConfig with a schedule and triggers. One trigger is on two streams.
const testTriggers = testConfig + `schedules:
  nightly: {cron: "0 3 * * *"}
triggers:
  tell-crm: {when: {type: bot-created, where: "subject LIKE 'bot-%'"}, to: {url: "https://crm.example/hooks?token=hunter2"}, delivery: {attempts: 3, rate: 5/s}}
  tell-erp: {when: [{type: message}, {type: bot-created}], to: {service: erp}, delivery: {order: none, replies: ignore}}
`

// boardOf returns a board on a Redis that no other test uses.
func boardOf(t testing.TB, kafka string) *status.Board {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr(), Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { _ = client.Close() })
	return status.NewBoard(client, must1(tidemill.NewNames(""))(t), kafka)
}

func newDesk(t testing.TB, change func(*Options)) *world {
	t.Helper()
	return newWorldOf(t, testTriggers, embedded.Options{}, change)
}

// writeLetter writes a dead letter of a trigger, for an event of a key, and returns its id.
func (w *world) writeLetter(trigger, key string, change func(*deadletters.Details)) string {
	w.Helper()
	d := deadletters.Details{Trigger: trigger, Reason: "500 Internal Server Error", Tried: 3, Destination: "https://crm.example/hooks",
		Attempts: []deadletters.Attempt{{At: time.Unix(1000, 0), Took: 1500 * time.Millisecond, Status: 500, Error: "500 Internal Server Error", Answer: "no room"}}}
	if change != nil {
		change(&d)
	}
	original := broker.View{ID: "of " + key, Source: "/crm", Type: "bot-created", Subject: key, Key: []byte(key), DataContentType: "application/json", Data: []byte(`{"name":"Ada"}`)}
	names := must1(w.config.Names())(w)
	v := must1(deadletters.New(names, broker.Position{Stream: "events", Partition: 1, Offset: int64(len(w.storedEvents(tidemill.StreamDeadLetters)))}, &original, d, time.Now()))(w)
	must1(w.producer.Publish(w.Context(), tidemill.StreamDeadLetters, &v))(w)
	return v.ID
}

// writeUndecodable writes a letter for a record that is not an event, as the broker does.
func (w *world) writeUndecodable(key string) string {
	w.Helper()
	data := must1(json.Marshal(broker.DeadLetter{Stream: "events", Partition: 2, Offset: 7, Last: 7, Group: "tidemill.triggers.events", Reason: "attribute specversion: is missing: this is not a CloudEvent",
		Record: &broker.DeadRecord{Key: []byte(key), Value: []byte("hello"), Headers: []broker.Header{{Key: "x"}}}}))(w)
	v := broker.View{ID: tidemill.ID("of the broker", key), Source: "/tidemill/tidemill/broker", Type: tidemill.TypeEventDeadLettered, Key: []byte(key), DataContentType: "application/json", Data: data}
	must1(w.producer.Publish(w.Context(), tidemill.StreamDeadLetters, &v))(w)
	return v.ID
}

// sendDecoded sends a request and decodes the answer.
func sendDecoded[T any](w *world, method, path, body string, headers ...string) (to T) {
	w.Helper()
	var r reply
	w.waitUntil("it is answered", func() bool { // a busy machine may need more than five seconds
		r = w.do(method, path, body, headers...)
		return method != http.MethodGet || r.StatusCode != http.StatusServiceUnavailable
	})
	if r.StatusCode != http.StatusOK {
		w.Fatalf("%s %s: %d %s", method, path, r.StatusCode, r.body)
	}
	return decodeReply[T](w, r)
}

// decodeReply returns the decoded body of an answer.
func decodeReply[T any](w *world, r reply) (to T) {
	w.Helper()
	if r.StatusCode != http.StatusOK {
		w.Fatalf("%d %s", r.StatusCode, r.body)
	}
	d := json.NewDecoder(strings.NewReader(r.body))
	d.DisallowUnknownFields()
	w.must(d.Decode(&to))
	return to
}

// waitForLetters waits until the list has n letters, and returns their ids.
func (w *world) waitForLetters(query string, n int) (all []string) {
	w.Helper()
	var list api.DeadLetters
	w.waitUntil(fmt.Sprint(n, " dead letters are listed"), func() bool {
		list = sendDecoded[api.DeadLetters](w, http.MethodGet, "/api/v1/dead-letters"+query, "")
		return len(list.DeadLetters) == n
	})
	for _, l := range list.DeadLetters {
		all = append(all, l.ID)
	}
	return all
}

func TestDeadLettersAreListed(t *testing.T) {
	t.Parallel()
	w := newDesk(t, nil)
	if got := w.waitForLetters("", 0); got != nil {
		t.Errorf("of none there are %v", got)
	}
	one, two := w.writeLetter("tell-crm", "bot-1", nil), w.writeLetter("tell-erp", "bot-2", func(d *deadletters.Details) { d.Reason = "timeout" })
	three := w.writeUndecodable("bot-3")
	if got := w.waitForLetters("", 3); !haveSame(got, []string{one, two, three}) {
		t.Errorf("listed are %v", got)
	}
	for query, want := range map[string]string{"?trigger=tell-crm": one, "?reason=TIME": two, "?key=bot-3": three, "?key=bot-1&since=-1h&type=bot-created&stream=events": one} {
		if got := w.waitForLetters(query, 1); got[0] != want {
			t.Errorf("%s: %v", query, got)
		}
	}
	if got := w.waitForLetters("?until=-1h", 0); got != nil {
		t.Errorf("an hour ago there were %v", got)
	}
	first := sendDecoded[api.DeadLetters](w, http.MethodGet, "/api/v1/dead-letters?limit=2", "")
	rest := sendDecoded[api.DeadLetters](w, http.MethodGet, "/api/v1/dead-letters?limit=2&cursor="+first.Cursor, "")
	if len(first.DeadLetters) != 2 || first.Total != 3 || len(rest.DeadLetters) != 1 || rest.Cursor != "" || rest.Total != 3 {
		t.Errorf("pages %+v and %+v", first, rest)
	}
	for query, says := range map[string]string{"?limit=0": "limit", "?limit=x": "limit", "?cursor=!": "cursor", "?since=x": "since", "?until=-x": "until", "?colour=red": "colour", "?key=a&key=b": "key"} {
		wantProblem(t, w.do(http.MethodGet, "/api/v1/dead-letters"+query, ""), http.StatusBadRequest, api.InvalidRequest, says)
	}
}

func TestADeadLetterIsShownWhole(t *testing.T) {
	t.Parallel()
	w := newDesk(t, nil)
	id, strange := w.writeLetter("tell-crm", "bot-1", nil), w.writeUndecodable("bot-3")
	w.waitForLetters("", 2)
	show := func(id string) api.WholeLetter {
		return sendDecoded[api.WholeLetter](w, http.MethodGet, "/api/v1/dead-letters/"+id, "")
	}
	whole := show(id[:12])
	var event map[string]any
	w.must(json.Unmarshal(whole.Event, &event))
	if whole.Letter.ID != id || whole.Letter.State != api.LetterOpen || whole.Letter.Tried != 3 || whole.Receipt != nil ||
		event["subject"] != "bot-1" || event["data"].(map[string]any)["name"] != "Ada" {
		t.Errorf("%+v %s", whole, whole.Event)
	}
	if want := (api.Attempt{At: time.Unix(1000, 0).UTC(), TookSeconds: 1.5, Status: 500, Error: "500 Internal Server Error", Answer: "no room"}); len(whole.Attempts) != 1 || whole.Attempts[0] != want {
		t.Errorf("%+v", whole.Attempts)
	}
	if of := show(strange); of.Record == nil || string(of.Record.Value) != "hello" || of.Event != nil || of.Letter.Group != "tidemill.triggers.events" || of.Letter.Key != "bot-3" {
		t.Errorf("%+v", of)
	}
	wantProblem(t, w.do(http.MethodGet, "/api/v1/dead-letters/none", ""), http.StatusNotFound, api.UnknownLetter, `"none"`)
	sendDecoded[api.LetterDone](w, http.MethodPost, "/api/v1/dead-letters/drop", `{"selection":{"ids":["`+id+`"]},"reason":"a test"}`)
	after := show(id)
	if r := after.Receipt; r == nil || r.Action != "dropped" || r.Outcome != "dropped" || r.Reason != "a test" || after.Letter.State != api.LetterResolved ||
		after.Letter.Key != "bot-1" || after.Letter.Reason != whole.Letter.Reason || len(after.Attempts) != 1 {
		t.Errorf("%+v", after)
	}
}

func TestLettersAreReplayedOnce(t *testing.T) {
	t.Parallel()
	w := newDesk(t, nil)
	one, two := w.writeLetter("tell-crm", "bot-1", nil), w.writeLetter("tell-crm", "bot-2", nil)
	other, gone, strange := w.writeLetter("tell-erp", "bot-1", nil), w.writeLetter("tell-nobody", "bot-4", nil), w.writeUndecodable("bot-5")
	w.waitForLetters("", 5)
	ask := func(body string) api.LetterDone {
		return sendDecoded[api.LetterDone](w, http.MethodPost, "/api/v1/dead-letters/replay", body)
	}
	dry := ask(`{"selection":{"trigger":"tell-crm"},"dryRun":true}`)
	if dry.Matched != 2 || !slices.Equal(dry.Letters, []string{one, two}) || len(dry.Commands) != 0 || !dry.DryRun || len(w.storedEvents(tidemill.StreamCommands)) != 0 {
		t.Errorf("%+v", dry)
	}
	done := ask(`{"selection":{"all":true},"rate":50}`)
	if done.Matched != 5 || !haveSame(done.Letters, []string{one, two, other}) || len(done.Commands) != 2 || len(done.Refused) != 2 {
		t.Fatalf("%+v", done)
	}
	for _, group := range done.Refused {
		switch {
		case strings.Contains(group.Reason, "tell-nobody") && slices.Equal(group.Letters, []string{gone}):
		case strings.Contains(group.Reason, "was not an event") && slices.Equal(group.Letters, []string{strange}):
		default:
			t.Errorf("refused %+v", group)
		}
	}
	if again := ask(`{"selection":{"ids":["` + one + `","` + two + `","none"]}}`); again.Replaying != 2 || len(again.Letters) != 0 || len(again.Commands) != 0 ||
		len(again.Refused) != 1 || again.Refused[0].Letters[0] != "none" {
		t.Errorf("%+v", again)
	}
	acts := w.storedEvents(tidemill.StreamCommands)
	if len(acts) != 2 || acts[0].Subject != "tell-crm" || acts[0].ID != done.Commands[0].ID {
		t.Errorf("asked is %v", ids(acts))
	}
	var data tidemill.LetterReplayData
	w.must(json.Unmarshal(acts[0].Data, &data))
	if data.Rate != 50 || len(data.Letters) != 2 || data.Letters[0].ID != one || data.Letters[0].Stream != "events" || data.Letters[0].Source != 1 {
		t.Errorf("%+v", data)
	}
	if l := sendDecoded[api.WholeLetter](w, http.MethodGet, "/api/v1/dead-letters/"+one, ""); l.Letter.State != api.LetterReplaying || l.Letter.Replay != acts[0].ID {
		t.Errorf("%+v", l.Letter)
	}
}

// No dispatcher serves a stream that the config does not have, so a replay of its dead letters would never end.
func TestLettersOfARemovedStreamAreNotReplayed(t *testing.T) {
	t.Parallel()
	w := newDesk(t, nil)
	original := broker.View{ID: "1", Source: "/crm", Type: "bot-created", Subject: "bot-1", Key: []byte("bot-1"), Data: []byte(`{}`)}
	v := must1(deadletters.New(must1(w.config.Names())(t), broker.Position{Stream: "orders", Offset: 7}, &original,
		deadletters.Details{Trigger: "tell-crm", Reason: "500 Internal Server Error"}, time.Now()))(t)
	must1(w.producer.Publish(t.Context(), tidemill.StreamDeadLetters, &v))(t)
	w.waitForLetters("", 1)
	done := sendDecoded[api.LetterDone](w, http.MethodPost, "/api/v1/dead-letters/replay", `{"selection":{"all":true}}`)
	if len(done.Commands) != 0 || len(done.Refused) != 1 || !strings.Contains(done.Refused[0].Reason, "stream orders is not in the config") {
		t.Errorf("%+v", done)
	}
	drop := sendDecoded[api.LetterDone](w, http.MethodPost, "/api/v1/dead-letters/drop", `{"selection":{"all":true},"reason":"no stream"}`)
	if len(drop.Letters) != 1 {
		t.Errorf("%+v", drop)
	}
}

// A stream that was created again may have fewer partitions. No dispatcher serves the others, so a replay of their dead
// letters would never end.
func TestLettersOfARemovedPartitionAreNotReplayed(t *testing.T) {
	t.Parallel()
	w := newDesk(t, nil)
	original := broker.View{ID: "1", Source: "/crm", Type: "bot-created", Subject: "bot-1", Key: []byte("bot-1"), Data: []byte(`{}`)}
	v := must1(deadletters.New(must1(w.config.Names())(t), broker.Position{Stream: tidemill.StreamEvents, Partition: 700, Offset: 7}, &original,
		deadletters.Details{Trigger: "tell-crm", Reason: "500 Internal Server Error"}, time.Now()))(t)
	must1(w.producer.Publish(t.Context(), tidemill.StreamDeadLetters, &v))(t)
	w.writeLetter("tell-crm", "bot-2", nil)
	w.waitForLetters("", 2)
	done := sendDecoded[api.LetterDone](w, http.MethodPost, "/api/v1/dead-letters/replay", `{"selection":{"all":true}}`)
	if len(done.Letters) != 1 || len(done.Refused) != 1 || !strings.Contains(done.Refused[0].Reason, "stream events has no partition 700 any more") {
		t.Errorf("%+v", done)
	}
}

func TestManyLettersAreSeveralActs(t *testing.T) {
	t.Parallel()
	w := newDesk(t, func(o *Options) { o.Limits.Event = 4 << 10 }) // ten letters per command
	for i := range 25 {
		w.writeLetter("tell-crm", fmt.Sprint("bot-", i), nil)
	}
	w.waitForLetters("", 25)
	done := sendDecoded[api.LetterDone](w, http.MethodPost, "/api/v1/dead-letters/replay", `{"selection":{"trigger":"tell-crm"},"rate":1}`)
	first, named := []int{}, 0
	for _, v := range w.storedEvents(tidemill.StreamCommands) {
		var data tidemill.LetterReplayData
		w.must(json.Unmarshal(v.Data, &data))
		first, named = append(first, data.First), named+len(data.Letters)
	}
	if len(done.Commands) != 3 || named != 25 || !slices.Equal(first, []int{0, 10, 20}) {
		t.Errorf("%d acts name %d letters, from %v on", len(done.Commands), named, first)
	}
}

func TestLettersAreDropped(t *testing.T) {
	t.Parallel()
	w := newDesk(t, nil)
	one, strange := w.writeLetter("tell-crm", "bot-1", nil), w.writeUndecodable("bot-3")
	kept := w.writeLetter("tell-erp", "bot-2", nil)
	w.waitForLetters("", 3)
	drop := func(body string) api.LetterDone {
		return sendDecoded[api.LetterDone](w, http.MethodPost, "/api/v1/dead-letters/drop", body)
	}
	if dry := drop(`{"selection":{"all":true},"reason":"x","dryRun":true}`); len(dry.Letters) != 3 || len(w.waitForLetters("", 3)) != 3 {
		t.Errorf("%+v", dry)
	}
	if r := w.do(http.MethodPost, "/api/v1/dead-letters/drop", `{"selection":{"all":true},"reason":"`+strings.Repeat("x", mostReason+1)+`"}`); r.StatusCode != http.StatusBadRequest || len(w.waitForLetters("", 3)) != 3 {
		t.Errorf("a reason that fills the log: %d %s", r.StatusCode, r.body)
	}
	if done := drop(`{"selection":{"ids":["` + one + `","` + strange + `"]},"reason":"a test"}`); !haveSame(done.Letters, []string{one, strange}) || done.Matched != 2 {
		t.Errorf("%+v", done)
	}
	if got := sendDecoded[api.DeadLetters](w, http.MethodGet, "/api/v1/dead-letters", ""); len(got.DeadLetters) != 1 || got.DeadLetters[0].ID != kept {
		t.Errorf("at once there are left %+v", got)
	}
	if again := drop(`{"selection":{"ids":["` + one + `"]},"reason":"again"}`); len(again.Letters) != 0 || len(again.Refused) != 1 || !strings.Contains(again.Refused[0].Reason, "resolved already") {
		t.Errorf("%+v", again)
	}
	letter, receipts := broker.View{}, 0
	for _, v := range w.storedEvents(tidemill.StreamDeadLetters) {
		if v.ID == one {
			letter = v
		}
		if v.Type != tidemill.TypeEventResolved {
			continue
		}
		receipts++
		if r := must1(deadletters.ReadReceipt(&v))(t); r.Letter == one {
			cause, _ := v.Attribute(tidemill.AttrCausationID)
			chain, _ := v.Attribute(tidemill.AttrCorrelationID)
			if r.Reason != "a test" || cause != letter.ID || chain != "of bot-1" {
				t.Errorf("%+v, caused by %s of %s", r, cause, chain)
			}
		}
	}
	if receipts != 2 {
		t.Errorf("there are %d receipts", receipts)
	}
	if left := drop(`{"selection":{"all":true},"reason":"x"}`); len(left.Letters) != 1 || left.Letters[0] != kept {
		t.Errorf("%+v", left)
	}
}

func TestWhatIsAskedMustBeMeant(t *testing.T) {
	t.Parallel()
	w := newDesk(t, nil)
	for body, says := range map[string]string{
		``:                                     "body",
		`{`:                                    "body",
		`{}`:                                   "selection",
		`{"selection":{}}`:                     "all",
		`{"selection":{"all":true,"key":"a"}}`: "all",
		`{"selection":{"colour":"red"}}`:       "colour",
		`{"selection":{"all":true}} {}`:        "after the JSON",
		`{"selection":{"all":true},"rate":-1}`: "rate",
		`{"selection":{"all":true},"rate":1e-300}`: "rate",
		`{"selection":{"all":true},"rate":1e9}`:    "rate",
		`{"selection":{"since":"x"}}`:              "since",
		`{"selection":{"all":true},"reason":1}`:    "reason",
	} {
		for _, verb := range []string{"replay", "drop"} {
			wantProblem(t, w.post("/api/v1/dead-letters/"+verb, body), http.StatusBadRequest, api.InvalidRequest, says)
		}
	}
	wantProblem(t, w.post("/api/v1/dead-letters/drop", `{"selection":{"all":true}}`), http.StatusBadRequest, api.InvalidRequest, "reason")
	wantProblem(t, w.post("/api/v1/dead-letters/drop", `{"selection":{"all":true},"reason":"x","rate":1}`), http.StatusBadRequest, api.InvalidRequest, "rate")
	wantProblem(t, w.post("/api/v1/dead-letters/replay", `{"selection":{"all":true},"reason":"x"}`), http.StatusBadRequest, api.InvalidRequest, "reason")
}

func TestWhoHasSomeKeysHasTheirLetters(t *testing.T) {
	t.Parallel()
	w := newDesk(t, func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: operate")+callerLine("one", "role: operate, keys: [bot-1]"))
	})
	one, two := w.writeLetter("tell-crm", "bot-1", nil), w.writeLetter("tell-crm", "bot-2", nil)
	list := func(name string) (n int) {
		return sendDecoded[api.DeadLetters](w, http.MethodGet, "/api/v1/dead-letters", "", tokenHeader(name)...).Total
	}
	w.waitUntil("the letters are there", func() bool { return list("all") == 2 })
	if n := list("one"); n != 1 {
		t.Errorf("who has one key sees %d letters", n)
	}
	wantProblem(t, w.do(http.MethodGet, "/api/v1/dead-letters/"+two, "", tokenHeader("one")...), http.StatusNotFound, api.UnknownLetter, two)
	for _, verb := range []string{"replay", "drop"} {
		body := `{"selection":{"ids":["` + two + `"]}}`
		if verb == "drop" {
			body = `{"selection":{"ids":["` + two + `"]},"reason":"x"}`
		}
		done := sendDecoded[api.LetterDone](w, http.MethodPost, "/api/v1/dead-letters/"+verb, body, tokenHeader("one")...)
		if done.Matched != 0 || len(done.Refused) != 1 || !strings.Contains(done.Refused[0].Reason, "may not touch") {
			t.Errorf("%s: %+v", verb, done)
		}
	}
	sendDecoded[api.LetterDone](w, http.MethodPost, "/api/v1/dead-letters/drop", `{"selection":{"all":true},"reason":"x"}`, tokenHeader("one")...)
	got := sendDecoded[api.WholeLetter](w, http.MethodGet, "/api/v1/dead-letters/"+one, "", tokenHeader("all")...)
	if got.Receipt == nil || got.Receipt.By != "one" || list("all") != 1 {
		t.Errorf("%+v", got.Receipt)
	}
	wantProblem(t, w.post("/api/v1/triggers/tell-crm/pause", "", tokenHeader("one")...), http.StatusForbidden, api.Forbidden, "all keys")
	if got := sendDecoded[api.TriggerDone](w, http.MethodPost, "/api/v1/triggers/tell-crm/pause", "", tokenHeader("all")...); got.Trigger.PausedBy != "all" {
		t.Errorf("%+v", got)
	}
}

// An event may have a partitionkey and a subject. Its dead letter is found by either, and is for callers of both.
func TestLettersOfTwoKeys(t *testing.T) {
	t.Parallel()
	w := newDesk(t, func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("one", "role: operate, keys: [bot-1]")+callerLine("both", "role: operate, keys: [bot-1, bot-2]"))
	})
	original := broker.View{ID: "1", Source: "/crm", Type: "bot-created", Subject: "bot-1", Key: []byte("bot-2"), Data: []byte(`{}`)}
	v := must1(deadletters.New(must1(w.config.Names())(t), broker.Position{Stream: "events", Offset: 7}, &original, deadletters.Details{Trigger: "tell-crm", Reason: "500"}, time.Now()))(t)
	must1(w.producer.Publish(t.Context(), tidemill.StreamDeadLetters, &v))(t)
	list := func(name, query string) (n int) {
		return sendDecoded[api.DeadLetters](w, http.MethodGet, "/api/v1/dead-letters"+query, "", tokenHeader(name)...).Total
	}
	w.waitUntil("the letter is there", func() bool { return list("both", "") == 1 })
	if one, other := list("both", "?key=bot-1"), list("both", "?key=bot-2"); one != 1 || other != 1 || list("both", "?key=bot") != 0 {
		t.Errorf("%d are of its subject, %d of its partitionkey", one, other)
	}
	if n := list("one", ""); n != 0 {
		t.Errorf("a caller of one key sees %d letters", n)
	}
	wantProblem(t, w.do(http.MethodGet, "/api/v1/dead-letters/"+v.ID, "", tokenHeader("one")...), http.StatusNotFound, api.UnknownLetter, v.ID)
	for name, want := range map[string]int{"one": 0, "both": 1} {
		done := sendDecoded[api.LetterDone](w, http.MethodPost, "/api/v1/dead-letters/drop", `{"selection":{"ids":["`+v.ID+`"]},"reason":"x","dryRun":true}`, tokenHeader(name)...)
		if done.Matched != want {
			t.Errorf("a caller of %s: %+v", name, done)
		}
	}
	if got := sendDecoded[api.WholeLetter](w, http.MethodGet, "/api/v1/dead-letters/"+v.ID, "", tokenHeader("both")...); got.Letter.Key != "bot-1" {
		t.Errorf("%+v", got.Letter)
	}
}

// A dead letter holds the whole fact: the metrics, the log's end and the artifact of a run. A recipe without keys has
// its name as the key of its runs, which a limit of keys may match.
func TestLettersOfRecipesWithoutKeysAreForAllKeys(t *testing.T) {
	t.Parallel()
	w := newDesk(t, func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: operate")+callerLine("night", "role: operate, keys: [\"nightly-*\"]"))
	})
	write := func(recipe, key string, old bool) string {
		fact := broker.View{ID: "of " + recipe + key + fmt.Sprint(old), Source: "/tidemill/tidemill/agent", Type: tidemill.TypeRunFinished, Subject: key, DataContentType: "application/json",
			Key: []byte(tidemill.RunKey(recipe, key)), Data: []byte(`{"outcome":"succeeded"}`), Extensions: []broker.Attribute{{Name: tidemill.AttrRecipe, Value: recipe}}}
		v := must1(deadletters.New(must1(w.config.Names())(w), broker.Position{Stream: tidemill.StreamFacts}, &fact, deadletters.Details{Trigger: "tell-crm", Reason: "500"}, time.Now()))(w)
		if old {
			v.Extensions = slices.DeleteFunc(v.Extensions, func(a broker.Attribute) bool { return a.Name == tidemill.AttrRecipe })
		}
		must1(w.producer.Publish(w.Context(), tidemill.StreamDeadLetters, &v))(w)
		return v.ID
	}
	theirs := []string{write("nightly-all", "nightly-all", false), write("nightly-all", "nightly-all", true)}
	own := write("intent", "nightly-1", false)
	list := func(name string) (ids []string) {
		for _, l := range sendDecoded[api.DeadLetters](w, http.MethodGet, "/api/v1/dead-letters", "", tokenHeader(name)...).DeadLetters {
			ids = append(ids, l.ID)
		}
		return ids
	}
	w.waitUntil("the letters are there", func() bool { return len(list("all")) == 3 })
	if got := list("night"); !slices.Equal(got, []string{own}) {
		t.Errorf("the list has %q", got)
	}
	tailed := func(name string) string {
		return w.do(http.MethodGet, "/api/v1/streams/dead-letters/events?from=beginning&follow=false", "", tokenHeader(name)...).body
	}
	hidden := func(state string) {
		for _, id := range theirs {
			wantProblem(t, w.do(http.MethodGet, "/api/v1/dead-letters/"+id, "", tokenHeader("night")...), http.StatusNotFound, api.UnknownLetter, id)
			if strings.Contains(tailed("night"), id) || !strings.Contains(tailed("all"), id) {
				t.Errorf("%s: the tail shows %s to a caller for some keys, or hides it from a caller for all", state, id)
			}
		}
	}
	hidden("open")
	for _, verb := range []string{"replay", "drop"} {
		body := map[string]string{"replay": `{"selection":{"all":true},"dryRun":true}`, "drop": `{"selection":{"all":true},"reason":"x","dryRun":true}`}[verb]
		if done := sendDecoded[api.LetterDone](w, http.MethodPost, "/api/v1/dead-letters/"+verb, body, tokenHeader("night")...); done.Matched != 1 {
			t.Errorf("%s: %+v", verb, done)
		}
	}
	sendDecoded[api.LetterDone](w, http.MethodPost, "/api/v1/dead-letters/drop", `{"selection":{"all":true},"reason":"x"}`, tokenHeader("all")...)
	hidden("resolved")
	if got := sendDecoded[api.WholeLetter](w, http.MethodGet, "/api/v1/dead-letters/"+own, "", tokenHeader("night")...); got.Receipt == nil {
		t.Errorf("%+v", got)
	}
}

func TestTriggersAreListed(t *testing.T) {
	t.Parallel()
	board := boardOf(t, "kafka-1")
	w := newDesk(t, func(o *Options) { o.Standing = board })
	list := func() api.Triggers { return sendDecoded[api.Triggers](w, http.MethodGet, "/api/v1/triggers", "") }
	all := list()
	if len(all.Triggers) != 2 || all.Dispatchers == nil || *all.Dispatchers != 0 || all.Triggers[0].Numbers != nil || *all.Triggers[0].DeadLetters != 0 {
		t.Fatalf("%+v", all)
	}
	crm, erp := all.Triggers[0], all.Triggers[1]
	if crm.To.URL != "https://crm.example/hooks" || crm.Delivery.Attempts != 3 || crm.Delivery.Rate != 5 || crm.Delivery.Order != "key" || crm.When[0].Where == "" || crm.State != api.TriggerActive {
		t.Errorf("%+v", crm)
	}
	if erp.To.Service != "erp" || !slices.Equal(erp.Streams, []string{"events", "messages"}) || erp.Delivery.Replies != "ignore" || erp.Delivery.Order != "none" {
		t.Errorf("%+v", erp)
	}
	w.writeLetter("tell-crm", "bot-1", nil)
	w.must(board.Write(t.Context(), "one", []status.Trigger{{Name: "tell-crm", Delivered: 5, Parked: 2, OldestParked: time.Unix(1000, 0), LastError: "no room", LastErrorAt: time.Unix(2000, 0)}}))
	w.must(board.Write(t.Context(), "two", []status.Trigger{{Name: "tell-crm", Delivered: 7}}))
	w.waitUntil("the letter is counted", func() bool { return *list().Triggers[0].DeadLetters == 1 })
	all = list()
	crm = all.Triggers[0]
	if *all.Dispatchers != 2 || crm.Numbers == nil || crm.Numbers.Delivered != 12 || crm.Numbers.Parked != 2 || crm.Numbers.OldestParked == nil || crm.LastError != "no room" {
		t.Errorf("%+v %+v", all, crm.Numbers)
	}
	if all.Triggers[1].State != api.TriggerStarting {
		t.Errorf("one that no dispatcher has is %s", all.Triggers[1].State)
	}
	if got := sendDecoded[api.Trigger](w, http.MethodGet, "/api/v1/triggers/tell-crm", ""); got.Numbers.Delivered != 12 {
		t.Errorf("%+v", got)
	}
	wantProblem(t, w.do(http.MethodGet, "/api/v1/triggers/no", ""), http.StatusNotFound, api.UnknownTrigger, `"no"`)
}

// The error of a delivery may name the key of its event, which may be another key than the reader's.
func TestErrorsOfTriggersAreForReadersOfAllKeys(t *testing.T) {
	t.Parallel()
	board := boardOf(t, "kafka-1")
	w := newDesk(t, func(o *Options) {
		o.Standing = board
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: read")+callerLine("one", "role: read, keys: [bot-1]"))
	})
	w.must(board.Write(t.Context(), "one", []status.Trigger{{Name: "tell-crm", Delivered: 5, Waits: "no service for bot-7", LastError: "its subject is bot-7", LastErrorAt: time.Unix(2000, 0)}}))
	for caller, sees := range map[string]bool{"all": true, "one": false} {
		shown := sendDecoded[api.Trigger](w, http.MethodGet, "/api/v1/triggers/tell-crm", "", tokenHeader(caller)...)
		list := sendDecoded[api.Triggers](w, http.MethodGet, "/api/v1/triggers", "", tokenHeader(caller)...)
		for where, got := range map[string]api.Trigger{"shown": shown, "listed": list.Triggers[0]} {
			if got.Numbers == nil || got.Numbers.Delivered != 5 || (got.LastError != "") != sees || (got.Waits != "") != sees || (got.LastErrorAt != nil) != sees {
				t.Errorf("%s to %s: %+v", where, caller, got)
			}
		}
	}
}

func TestWithoutRedisNumbersAreUnknown(t *testing.T) {
	t.Parallel()
	w := newDesk(t, nil)
	all := sendDecoded[api.Triggers](w, http.MethodGet, "/api/v1/triggers", "")
	if all.Dispatchers != nil || all.Triggers[0].Numbers != nil || all.Triggers[0].State != api.TriggerActive {
		t.Errorf("%+v", all)
	}
}

func TestATriggerIsPausedAndResumed(t *testing.T) {
	t.Parallel()
	w := newDesk(t, nil)
	set := func(verb string) api.TriggerDone {
		return sendDecoded[api.TriggerDone](w, http.MethodPost, "/api/v1/triggers/tell-crm/"+verb, "")
	}
	if no := set("resume"); no.Changed || no.Position != nil || no.Trigger.State != api.TriggerActive {
		t.Errorf("%+v", no)
	}
	if yes := set("pause"); !yes.Changed || yes.Position == nil || yes.Trigger.State != api.TriggerPaused || yes.Trigger.PausedSince == nil {
		t.Errorf("%+v", yes)
	}
	if again := set("pause"); again.Changed || again.Trigger.State != api.TriggerPaused {
		t.Errorf("%+v", again)
	}
	if end := set("resume"); !end.Changed || end.Trigger.State != api.TriggerActive {
		t.Errorf("%+v", end)
	}
	if acts := w.storedEvents(tidemill.StreamCommands); len(acts) != 2 {
		t.Errorf("%d acts", len(acts))
	}
	wantProblem(t, w.post("/api/v1/triggers/no/pause", ""), http.StatusNotFound, api.UnknownTrigger, `"no"`)
}

// A pause that another gateway has just written is known, however late this gateway reads it by itself.
func TestAPauseOfAnotherGatewayIsEnded(t *testing.T) {
	t.Parallel()
	w := newDesk(t, nil)
	by := commands.Author{Names: must1(w.config.Names())(t)}
	for n := range 20 {
		by.Now = time.Unix(int64(n), 0)
		for what, v := range map[string]broker.View{"triggers/tell-crm": by.PauseTrigger("tell-crm"), "schedules/nightly": by.PauseSchedule("nightly")} {
			must1(commands.Publish(t.Context(), w.producer, &v))(t)
			if r := w.post("/api/v1/"+what+"/resume", ""); !strings.Contains(r.body, `"changed":true`) {
				t.Fatalf("pause %d of %s stays: %s", n, what, r.body)
			}
		}
	}
}

func TestATriggerGetsAPastRangeAgain(t *testing.T) {
	t.Parallel()
	w := newDesk(t, nil)
	publish := func(typ, subject string) {
		r := w.post("/events", fmt.Sprintf(`{"specversion":"1.0","id":"%s","source":"/crm","type":"%s","subject":"%s"}`, subject, typ, subject), "Content-Type", structuredType)
		if r.StatusCode != http.StatusAccepted {
			t.Fatal(r.body)
		}
	}
	for i := range 10 {
		typ := "bot-created"
		if i%2 == 1 {
			typ = "bot-deleted"
		}
		publish(typ, fmt.Sprint("bot-", i))
	}
	publish("bot-created", "shop")
	ask := func(body string) api.ReplayDone {
		return sendDecoded[api.ReplayDone](w, http.MethodPost, "/api/v1/triggers/tell-crm/replay", body)
	}
	dry := ask(`{"from":"beginning","dryRun":true}`)
	if p := dry.Preview; dry.Records != 11 || !dry.DryRun || dry.ID != "" || p == nil || p.Matched != 5 || p.Read != 11 || !p.Complete || len(p.First) != 5 {
		t.Fatalf("%+v %+v", dry, dry.Preview)
	}
	if all := sendDecoded[api.ReplayDone](w, http.MethodPost, "/api/v1/triggers/tell-erp/replay", `{"from":"beginning","dryRun":true}`); all.Preview.Matched != 6 {
		t.Errorf("without a condition there match %+v", all.Preview)
	}
	done := ask(`{"from":"-1h","rate":3}`)
	if done.ID == "" || done.Position == nil || !slices.Equal(done.Range, dry.Range) || done.Preview != nil {
		t.Errorf("%+v", done)
	}
	if again := ask(`{"from":"beginning"}`); again.ID != done.ID || len(w.storedEvents(tidemill.StreamCommands)) != 1 {
		t.Errorf("the same range asked for again is %+v", again)
	}
	shown := sendDecoded[api.Trigger](w, http.MethodGet, "/api/v1/triggers/tell-crm", "")
	if len(shown.Replays) != 1 || shown.Replays[0].From != "-1h" || shown.Replays[0].To != "end" || shown.Replays[0].Rate != 3 || !slices.Equal(shown.Replays[0].Range, done.Range) {
		t.Errorf("%+v", shown.Replays)
	}
	w.passKey("bot-4")
	if dry := ask(`{"from":"beginning","dryRun":true}`); dry.Preview.Matched != 4 || dry.Preview.Read != 11 || len(dry.Preview.First) != 4 {
		t.Errorf("without the events of a forgotten key there match %+v", dry.Preview)
	}
	if none := ask(`{"from":"end"}`); none.ID != "" || none.Records != 0 || len(none.Range) != 0 {
		t.Errorf("of nothing there is %+v", none)
	}
	for body, says := range map[string]string{`{}`: "from", `{"from":"x"}`: "from", `{"from":"0","to":"x"}`: "to", `{"from":"0","rate":-1}`: "rate", `{"from":"0","by":1}`: "by"} {
		wantProblem(t, w.post("/api/v1/triggers/tell-crm/replay", body), http.StatusBadRequest, api.InvalidRequest, says)
	}
	wantProblem(t, w.post("/api/v1/triggers/no/replay", `{"from":"0"}`), http.StatusNotFound, api.UnknownTrigger, `"no"`)
}

// passKey records that a key is forgotten up to the present end of the stream events.
func (w *world) passKey(key string) {
	w.Helper()
	ends := must1(w.broker.Ends(w.Context(), tidemill.StreamEvents))(w)
	id := must1(w.broker.TopicID(w.Context(), tidemill.StreamEvents))(w)
	d := tidemill.KeyPassedData{Ends: map[string][]int64{tidemill.StreamEvents: make([]int64, len(ends))}, Topics: map[string]string{tidemill.StreamEvents: id}}
	for _, e := range ends {
		d.Ends[tidemill.StreamEvents][e.Partition] = e.Offset
	}
	v := broker.View{ID: key, Source: "/test", Type: tidemill.TypeKeyPassed, Subject: key, Data: must1(json.Marshal(d))(w), DataContentType: "application/json"}
	must1(w.producer.Publish(w.Context(), tidemill.StreamCommands, &v))(w)
}

// sharedPrefix returns a first character that the ids of two letters have in common.
func (d *testGateways) sharedPrefix() string {
	d.Helper()
	for i, seen := 0, map[byte]bool{}; ; i++ {
		id := d.writeLetter("tell-erp", fmt.Sprint("bot-", 100+i), nil)
		if seen[id[0]] {
			d.waitUntil("the letters are there", func() bool {
				return sendDecoded[api.DeadLetters](d.world, http.MethodGet, "/api/v1/dead-letters?trigger=tell-erp", "").Total == i+1
			})
			return id[:1]
		}
		seen[id[0]] = true
	}
}

// deskAsks get every documented answer about triggers and dead letters.
func (d *testGateways) deskAsks(long, stranger []string) (all []gatewayRequest) {
	open := d.writeLetter("tell-crm", "bot-1", nil)
	resolved := d.writeLetter("tell-crm", "bot-2", nil)
	d.writeUndecodable("bot-3")
	d.waitUntil("the letters are there", func() bool {
		return sendDecoded[api.DeadLetters](d.world, http.MethodGet, "/api/v1/dead-letters", "").Total == 3
	})
	gets := []string{"/api/v1/triggers", "/api/v1/triggers/tell-crm", "/api/v1/dead-letters", "/api/v1/dead-letters/" + open}
	for _, path := range gets {
		all = append(all, gatewayRequest{d.open, "GET", path, "", nil, 200}, gatewayRequest{d.guarded, "GET", path, "", d.reader, 200}, gatewayRequest{d.open, "GET", path, "", stranger, 403},
			gatewayRequest{d.guarded, "GET", path, "", d.publisher, 403}, gatewayRequest{d.guarded, "GET", path, "", nil, 401},
			gatewayRequest{d.narrow, "GET", path, "", append(long, d.reader...), 431}, gatewayRequest{d.down, "GET", path, "", nil, 503})
	}
	const trigger, letter = "/api/v1/triggers/tell-crm/", "/api/v1/dead-letters/"
	bodies := map[string]string{letter + "drop": `{"selection":{"ids":["` + resolved + `","none"]},"reason":"a test"}`,
		letter + "replay": `{"selection":{"all":true}}`, trigger + "replay": `{"from":"beginning"}`, trigger + "pause": "", trigger + "resume": ""}
	for path, body := range bodies {
		all = append(all, gatewayRequest{d.open, "POST", path, body, nil, 200}, gatewayRequest{d.guarded, "POST", path, body, d.operator, 200}, gatewayRequest{d.open, "POST", path, body, stranger, 403},
			gatewayRequest{d.guarded, "POST", path, body, d.reader, 403}, gatewayRequest{d.guarded, "POST", path, body, nil, 401},
			gatewayRequest{d.narrow, "POST", path, body, append(long, d.operator...), 431}, gatewayRequest{d.down, "POST", path, body, nil, 503})
		if body == "" {
			continue
		}
		all = append(all, gatewayRequest{d.open, "POST", path, "{", nil, 400}, gatewayRequest{d.narrow, "POST", path, strings.Repeat(" ", 120<<10), d.operator, 413},
			gatewayRequest{d.narrow, "POST", path, strings.Repeat(" ", 30<<10), d.operator, 429}, gatewayRequest{d.narrow, "POST", path, "late", d.operator, 408})
	}
	for _, verb := range []string{"pause", "resume", "replay"} {
		all = append(all, gatewayRequest{d.open, "POST", "/api/v1/triggers/no/" + verb, `{"from":"0"}`, nil, 404})
	}
	return append(all, gatewayRequest{d.open, "POST", trigger + "replay", `{"from":"beginning","dryRun":true}`, nil, 200},
		gatewayRequest{d.open, "GET", "/api/v1/triggers/no", "", nil, 404}, gatewayRequest{d.open, "GET", letter + "none", "", nil, 404},
		gatewayRequest{d.open, "GET", letter + d.sharedPrefix(), "", nil, 400},
		gatewayRequest{d.open, "GET", "/api/v1/dead-letters?limit=x", "", nil, 400},
		gatewayRequest{d.open, "GET", letter + resolved, "", nil, 200})
}
