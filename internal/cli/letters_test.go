package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/triggers/deadletters"
)

const deskConfig = `version: 1
name: prod
triggers:
  tell-crm: {when: {type: bot-created, where: "subject LIKE 'bot-%'"}, to: {url: "https://crm.example/hooks"}, delivery: {rate: 5/s}}
  tell-erp: {when: {type: bot-deleted}, to: {service: erp}, delivery: {order: none, replies: ignore}}
`

// desk is a gateway with triggers and without a dispatcher: the test acts as the dispatcher.
type desk struct {
	*testing.T
	*replica
	names tidemill.Names
	b     *broker.Broker
	p     *broker.Producer
}

func openDesk(t *testing.T) *desk {
	t.Helper()
	dir := t.TempDir()
	kafka := servers(t, embedded.Options{Dir: dir})
	d := &desk{T: t, replica: startGateway(t, append(kafka, "-f", leave(t, deskConfig, dir, "c.yaml"), "--listen", "127.0.0.1:0")...)}
	var err error
	d.names, err = tidemill.NewNames("prod")
	d.must(err)
	d.b, err = broker.Open(t.Context(), broker.Options{Addr: kafka[1], Names: d.names})
	d.must(err)
	t.Cleanup(func() { d.must(d.b.Close()) })
	d.p, err = d.b.Producer(broker.ProducerOptions{})
	d.must(err)
	t.Cleanup(func() { _ = d.p.Close(context.Background()) })
	return d
}

func (d *desk) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

// letter writes a dead letter and waits until the gateway lists it.
func (d *desk) letter(key string) broker.View {
	d.Helper()
	original := broker.View{ID: "of " + key, Source: "/crm", Type: "bot-created", Subject: key, DataContentType: "application/json", Data: []byte(`{"name":"Ada"}`)}
	v, err := deadletters.New(d.names, broker.Position{Stream: "events", Partition: 2, Offset: 7}, &original, deadletters.Details{
		Trigger: "tell-crm", Reason: "the subscriber answered 500", Tried: 30, Destination: "https://crm.example/hooks",
		Attempts: []deadletters.Attempt{{At: time.Unix(1000, 0), Took: 1500 * time.Millisecond, Error: "connection refused"},
			{At: time.Unix(2000, 0), Took: time.Second, Status: 500, Error: "500 Internal Server Error", Answer: "no\x1b[31m room\nat all"}}}, time.Now())
	d.must(err)
	_, err = d.p.Publish(d.Context(), tidemill.StreamDeadLetters, &v)
	d.must(err)
	eventually(d.T, func() bool { return strings.Contains(call(d.T, "", "dl", "--url", d.url).out, v.ID[:show.ShownID]) })
	return v
}

func (d *desk) resolve(letter *broker.View, r deadletters.Receipt) {
	d.Helper()
	v, err := deadletters.Resolved(d.names, letter, r, time.Now())
	d.must(err)
	_, err = d.p.Publish(d.Context(), tidemill.StreamDeadLetters, &v)
	d.must(err)
}

// triggers returns the list that the command prints, once it contains says. It retries because a
// busy Redis may be late with the state of the dispatchers.
func (d *desk) triggers(says string, flags ...string) (list string) {
	d.Helper()
	eventually(d.T, func() bool {
		o := call(d.T, "", append([]string{"triggers", "--url", d.url}, flags...)...)
		list = o.out
		return strings.Contains(o.out+o.err, says)
	})
	return list
}

// acts returns the commands on the stream.
func (d *desk) acts() (all []broker.View) {
	d.Helper()
	_, err := d.b.ReadBack(d.Context(), []broker.Position{{Stream: tidemill.StreamCommands}}, func(e *broker.Incoming) { all = append(all, e.Clone()) })
	d.must(err)
	return all
}

func TestDeadLettersFromTheCommandLine(t *testing.T) {
	t.Parallel()
	d := openDesk(t)
	if o := call(t, "", "dead-letters", "--url", d.url); o.code != 0 || !strings.Contains(o.err, "no open dead letters") || o.out != "" {
		t.Errorf("of none it says %q, %q", o.out, o.err)
	}
	one, two := d.letter("bot-1"), d.letter("bot-2")
	o := call(t, "", "dl", "--url", d.url, "--trigger", "tell-crm", "-n", "1")
	mention(t, "the list", o.out, "ID ", "TRIGGER", "tell-crm", "bot-created", "bot-2", "30", "the subscriber answered 500", two.ID[:show.ShownID])
	mention(t, "what comes next", o.err, "1 of 2 open dead letters; --limit 2 shows all, --after ", "Next: tidemill dl show "+two.ID[:show.ShownID], "tidemill dl replay --trigger tell-crm --dry-run")
	var list api.DeadLetters
	d.must(json.Unmarshal([]byte(ok(t, "dl", "--url", d.url, "-o", "json", "--reason", "ANSWERED", "--key", "bot-1")), &list))
	if len(list.DeadLetters) != 1 || list.DeadLetters[0].ID != one.ID || list.Total != 1 || list.Cursor != "" {
		t.Errorf("as JSON it lists %+v", list)
	}
	mention(t, "no letter", call(t, "", "dl", "--url", d.url, "--key", "none").err, "No open dead letter matches")

	shown := ok(t, "dl", "show", one.ID[:show.ShownID], "--url", d.url)
	mention(t, "show", shown, one.ID+", open", "tell-crm", "the subscriber answered 500", "bot-created of bot-1", "30 attempts:", "no answer", "connection refused", "… 28 more",
		"500 Internal Server Error", "1.5s", "The last answer began:\n  no·[31m room\n  at all", `"name": "Ada"`, "tidemill dl replay "+one.ID[:show.ShownID])
	var whole api.WholeLetter
	d.must(json.Unmarshal([]byte(ok(t, "dl", "show", one.ID, "--url", d.url, "-o", "json")), &whole))
	if whole.Letter.ID != one.ID || len(whole.Attempts) != 2 {
		t.Errorf("as JSON it shows %+v", whole)
	}
	mention(t, "no letter", call(t, "", "dl", "show", "none", "--url", d.url).err, "find dead letter none: no dead letter's id is")

	mention(t, "a dry drop", ok(t, "dl", "drop", one.ID[:show.ShownID], "--reason", "a test", "--dry-run", "--url", d.url), "1 dead letter would be dropped. Next: ")
	mention(t, "a drop", ok(t, "dl", "drop", one.ID[:show.ShownID], "--reason", "a test", "--url", d.url), "Dropped 1 dead letter.")
	mention(t, "one that is dropped", ok(t, "dl", "show", one.ID, "--url", d.url), "resolved", "dropped", "by anonymous", "a test")
	if o := call(t, "", "dl", "drop", one.ID, "--reason", "again", "--url", d.url); o.code != exitFailed || !strings.Contains(o.err, "resolved already") {
		t.Errorf("dropped again: exit %d, %s", o.code, o.err)
	}
	mention(t, "all", ok(t, "dl", "drop", "--all", "--reason", "a test", "--url", d.url), "Dropped 1 dead letter.")
}

func TestAReplayShowsItsReceipts(t *testing.T) {
	t.Parallel()
	d := openDesk(t)
	one, two := d.letter("bot-1"), d.letter("bot-2")
	mention(t, "a dry run", ok(t, "dl", "replay", "-t", "tell-crm", "--dry-run", "--url", d.url), "2 dead letters would be replayed. Next: ")
	d.triggers("No dispatcher runs")
	var out, stderr syncBuffer
	var code int
	var replaying sync.WaitGroup
	replaying.Go(func() {
		code = report(&stderr, run(t.Context(), []string{"dl", "replay", "--trigger", "tell-crm", "--rate", "10/m", "--url", d.url}, strings.NewReader(""), &out, &stderr))
	})
	eventually(t, func() bool { return strings.Contains(stderr.String(), "Replaying 2 dead letters") }) // the gateway has answered
	all := d.acts()
	if len(all) != 1 {
		t.Fatalf("it asks for it %d times", len(all))
	}
	act := all[0]
	var data tidemill.LetterReplayData
	d.must(json.Unmarshal(act.Data, &data))
	if len(data.Letters) != 2 || data.Rate < 0.16 || data.Rate > 0.17 {
		t.Errorf("it asks for %+v", data)
	}
	mention(t, "the list", ok(t, "dl", "--url", d.url), "(being replayed) the subscriber")
	mention(t, "another", ok(t, "dl", "replay", "--all", "--no-wait", "--url", d.url), "There is nothing to replay.")
	d.resolve(&one, deadletters.Receipt{Action: deadletters.Replayed, Outcome: deadletters.Delivered, Command: act.ID})
	d.resolve(&two, deadletters.Receipt{Action: deadletters.Replayed, Outcome: deadletters.FailedAgain, Command: act.ID, Reason: "still no room", NewLetter: "abcdefghijklmnop"})
	replaying.Wait()
	mention(t, "the receipts", out.String(), one.ID[:show.ShownID]+"  delivered", two.ID[:show.ShownID]+"  failed again: still no room (dead letter abcdefghij)",
		"Delivered 1 dead letter, 1 failed again. Next: tidemill dl")
	mention(t, "what delays", stderr.String(), "No dispatcher runs")
	if code != exitFailed {
		t.Errorf("what failed again exits with %d", code)
	}
}

func TestWaitingForReceiptsMayEnd(t *testing.T) {
	t.Parallel()
	d := openDesk(t)
	d.letter("bot-1")
	ok(t, "triggers", "pause", "tell-crm", "--url", d.url)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out syncBuffer
	var stderr syncBuffer
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, []string{"dl", "replay", "--all", "--url", d.url}, strings.NewReader(""), &out, &stderr)
	}()
	eventually(t, func() bool { return strings.Contains(stderr.String(), "tell-crm is paused by anonymous") })
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Ctrl-C ends it with %v", err)
	}
	mention(t, "what it says", stderr.String(), "without a receipt yet: 1 dead letter", "until tidemill triggers resume tell-crm")
}

func TestTriggersFromTheCommandLine(t *testing.T) {
	t.Parallel()
	d := openDesk(t)
	mention(t, "the list", d.triggers("No dispatcher runs"), "TRIGGER", "tell-crm  active  ?", "https://crm.example/hooks", "service erp")
	mention(t, "show", ok(t, "triggers", "show", "tell-crm", "--url", d.url), "tell-crm, active", "type bot-created where subject LIKE 'bot-%'", "in order of each key, 5 a second", "unknown: no dispatcher has reported", "0 open")
	mention(t, "show the other", ok(t, "triggers", "show", "tell-erp", "--url", d.url), "service erp", "in no order, replies ignored")
	mention(t, "pause", ok(t, "triggers", "pause", "tell-crm", "--url", d.url), "tell-crm is paused", "tidemill triggers resume tell-crm")
	mention(t, "pause again", ok(t, "triggers", "pause", "tell-crm", "--url", d.url), "was paused by anonymous")
	mention(t, "the list", call(t, "", "triggers", "--url", d.url).err, "Paused: tidemill triggers resume tell-crm")
	mention(t, "resume", ok(t, "triggers", "resume", "tell-crm", "--url", d.url), "tell-crm is resumed")
	mention(t, "resume again", ok(t, "triggers", "resume", "tell-crm", "--url", d.url), "was not paused")
	mention(t, "JSON", d.triggers(`"dispatchers": 0`, "-o", "json"), `"numbers": null`)
	mention(t, "no trigger", call(t, "", "triggers", "pause", "no", "--url", d.url).err, `pause trigger no: trigger "no" is not in the config`)

	for i := range 7 {
		ok(t, "publish", "bot-created", "--subject", fmt.Sprint("bot-", i), "--id", fmt.Sprint("id-", i), "--url", d.url)
	}
	ok(t, "publish", "bot-created", "--subject", "shop", "--url", d.url)
	mention(t, "a dry run", ok(t, "triggers", "replay", "tell-crm", "--from", "-1h", "--dry-run", "--url", d.url), "tell-crm would get 7 events of 8 records.", "bot-created", "…", "without --dry-run")
	mention(t, "a replay", ok(t, "triggers", "replay", "tell-crm", "--from", "beginning", "--rate", "2/s", "--url", d.url), "gets the matching events of 8 records again, by command")
	mention(t, "show", ok(t, "triggers", "show", "tell-crm", "--url", d.url), "from beginning to end, requested by anonymous")
	mention(t, "nothing", ok(t, "triggers", "replay", "tell-crm", "--from", "end", "--url", d.url), "There is nothing")
}

func TestSlipsAtTheDesk(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"triggers x":                           "one argument too many",
		"triggers shwo x":                      "one argument too many",
		"triggers show":                        "NAME is missing",
		"triggers --frobnicate":                "tidemill help triggers lists",
		"triggers pause a b":                   "one argument too many",
		"triggers replay x":                    "--from is missing",
		"triggers replay x --from then":        "--from",
		"triggers replay x --from 0 --to then": "--to",
		"triggers replay x --from 0 --rate 5":  "--rate",
		"dl --limit 0":                         "--limit 0",
		"dl --since then":                      "--since",
		"dl -o yaml":                           "-o",
		"dead-letters show":                    "ID is missing",
		"dl drop x":                            "--reason is missing",
		"dl drop --reason x":                   "say which",
		"dl drop x --all --reason x":           "--all selects all",
		"dl replay":                            "say which",
		"dl replay --all --key x":              "--all selects all",
		"dl replay x --rate many":              "--rate",
		"dl replay x --until then":             "--until",
		"dl replay x --with y":                 "there is no flag --with",
		"help dl drop x":                       "one argument too many",
	} {
		o := call(t, "", strings.Fields(args)...)
		if o.code != exitUsage || !strings.Contains(o.err, says) {
			t.Errorf("%s: exit %d, %q; want %q", args, o.code, o.err, says)
		}
	}
	mention(t, "help dl", ok(t, "help", "dl"), "dead-letters: ", "Commands:", "dead-letters replay")
	mention(t, "help dl drop", ok(t, "help", "dl", "drop"), "dead-letters drop: ")
	mention(t, "dl drop -h", ok(t, "dl", "drop", "-h"), "dead-letters drop: ")
}

const lettersOfScorers = `version: 1
streams: {messages: {types: [message]}, scored: }
recipes:
  intent:
    when: {type: bot-created}
    run: {dir: trainer, command: [sh, train.sh], attempts: 1}
    makes: {model: "intent/{key}"}
scorers:
  intents: {from: messages, to: scored, model: "intent/{key}", map: {x: data.x}}
  idle: {from: events, to: scored, model: "intent/{key}", map: {x: data.x}, types: [none]}
`

// The events of a key without a model are scored once the key has one: each once, and in the order of
// the events.
func TestDeadLettersOfAScorerByCommand(t *testing.T) {
	t.Parallel()
	dir, file := runsFolder(t, lettersOfScorers)
	r := runsAt{t, filepath.Join(dir, "data")}
	startUp(t, r.data, "-f", file)
	for _, id := range []string{"1", "2"} {
		r.ok("publish", "message", "--subject", "bot-1", "--id", id, "-d", `{"x": 3}`)
	}
	r.ok("publish", "message", "--subject", "stranger", "-d", `{"x": 3}`)
	eventually(t, func() bool { return strings.Count(r.call("dl", "--scorer", "intents").out, "has no champion") == 3 })
	o := r.call("dl", "--scorer", "intents", "--key", "bot-1")
	mention(t, "the list", o.out, "scorer/intents", "message", "bot-1", "model intent/bot-1 has no champion")
	mention(t, "what comes next", o.err, "tidemill dl replay --scorer intents, after its key has a model")
	mention(t, "those of another", r.call("dl", "--scorer", "idle").err, "No open dead letter matches")
	mention(t, "a dry run", r.ok("dl", "replay", "--scorer", "intents", "--dry-run"), "3 dead letters would be replayed.")
	o = r.call("dl", "replay", "--scorer", "intents")
	mention(t, "too early", o.out+o.err, "Skipped 2 dead letters", "it still cannot be scored: model intent/bot-1 has no champion", "Nothing was replayed.")
	if o.code != exitFailed {
		t.Errorf("a replay of nothing exits with %d", o.code)
	}

	r.ok("runs", "start", "intent", "--key", "bot-1")
	r.is("bot-1", tidemill.RunSucceeded)
	eventually(t, func() bool { return r.call("score", "intents", "--key", "bot-1", "-d", `{"x": 3}`).code == 0 }) // the scorer knows the champion
	mention(t, "those of another", r.ok("dl", "replay", "--scorer", "idle"), "There is nothing to replay.")
	o = r.call("dl", "replay", "--scorer", "intents")
	mention(t, "the replay", o.out+o.err, "  delivered\n", "Delivered 2 dead letters.", "Skipped 1 dead letter", "model intent/stranger has no champion")
	mention(t, "the replay again", r.call("dl", "replay", "--scorer", "intents", "--key", "bot-1").out, "There is nothing to replay.")
	mention(t, "the list", r.call("dl").out, "intent/stranger has no champion")
	var scored []string
	for line := range strings.Lines(r.ok("tail", "scored", "--from", "beginning", "--no-follow", "-o", "json")) {
		var v struct{ Subject, CausationID string }
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		scored = append(scored, v.Subject+" "+v.CausationID)
	}
	if want := []string{"bot-1 1", "bot-1 2"}; !slices.Equal(scored, want) {
		t.Errorf("scored are %q, want %q", scored, want)
	}

	leave(t, strings.ReplaceAll(lettersOfScorers, "intents:", "renamed:"), file)
	eventually(t, func() bool {
		o := r.call("dl", "replay", "--scorer", "intents")
		return o.code == exitFailed && strings.Contains(o.err, "scorer intents is not in the config: add it again and replay, or drop the dead letter")
	})
}
