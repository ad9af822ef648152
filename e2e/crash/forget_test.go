//go:build slow

package crash

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
)

// everythingConfig gives a bot each kind of data. Its trainer saves a checkpoint, writes a log line and
// makes a model from its input. If the input says so, it runs for ever.
const everythingConfig = `version: 1
name: forget
streams: {events: {partitions: 1}, facts: {partitions: 2}, progress: {partitions: 1}, dead-letters: {partitions: 1}}
triggers:
  sick: {when: {type: order}, to: {url: "%[1]s/sick"}, delivery: {attempts: 1}}
  slow: {when: {type: message}, to: {url: "%[1]s/slow"}, delivery: {attempts: 1000, backoff: {first: 1s, cap: 1s}}}
  mourners: {when: {type: bot-deleted}, to: {url: "%[1]s/mourners"}}
recipes:
  intent:
    when: {type: new-data, where: "source = '/shop'"}
    inputs: {examples: "bots/{key}", words: shared/words}
    run:
      dir: .
      command: [sh, -c, "cat $TIDEMILL_IN/examples/text; cp $TIDEMILL_IN/examples/text $TIDEMILL_CHECKPOINT/half; if grep -q slow $TIDEMILL_IN/examples/text; then echo begun-$TIDEMILL_KEY; exec sleep 600; fi; cp $TIDEMILL_IN/examples/text $TIDEMILL_OUT; echo CAg6QQoQCgF4EgF5IghJZGVudGl0eRIBZ1oUCgF4Eg8KDQgBEgkKAxIBbgoCCAFiFAoBeRIPCg0IARIJCgMSAW4KAggBQgIQDQ== | base64 -d > $TIDEMILL_OUT/model.onnx"]
      grace: 1s
    makes: {model: "intent/{key}"}
`

// TestForgettingABotWithEverything gives two bots each kind of data. The test forgets the first bot
// and searches for its data everywhere.
func TestForgettingABotWithEverything(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	to := newSubscriber(t)
	must(t, os.WriteFile(filepath.Join(dir, "tidemill.yaml"), fmt.Appendf(nil, everythingConfig, to.URL), 0o644))
	b := &bots{life: openLife(t, dir), dir: dir, to: to}
	defer b.stop()
	b.commit("shared/words", "the words of all", "")
	for _, bot := range []string{gone, stays} {
		b.giveEverything(bot)
	}
	var there api.KeyEnd
	b.ask(&there, `{"key":"`+gone+`","dryRun":true}`)
	b.publish(eventOf("bot-deleted", "the end", gone))
	end := b.receiptOf(gone)
	b.checkReceipt(there.Receipt, end)
	b.checkForgotten(end)
	b.checkUntouched(stays)
	b.checkDelivered()
	b.trainAgain(gone)
}

const gone, stays = "bot-gone-42", "bot-stays-7"

// subscriber refuses events until the test heals it.
type subscriber struct {
	*httptest.Server
	mu   sync.Mutex
	well bool
	got  []string // path and subject of each request
}

func newSubscriber(t *testing.T) *subscriber {
	s := &subscriber{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.well && r.URL.Path != "/mourners" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		s.got = append(s.got, r.URL.Path+" "+r.Header.Get("ce-subject"))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *subscriber) heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.well = true
}

func (s *subscriber) has(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.got, what)
}

// bots is a Tidemill on one machine, with its bots.
type bots struct {
	*life
	dir string
	to  *subscriber
	n   int
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventOf(typ, id, subject string) string {
	return fmt.Sprintf(`{"specversion": "1.0", "type": %q, "source": "/shop", "id": %q, "subject": %q}`, typ, id+" "+subject, subject)
}

// commit puts one file, without an event. The test publishes the event itself.
func (b *bots) commit(dataset, text, branch string) api.Commit {
	b.Helper()
	sum := sha256.Sum256([]byte(text))
	digest := hex.EncodeToString(sum[:])
	must(b, b.p.Store().PutObject(b.Context(), digest, int64(len(text)), strings.NewReader(text)))
	b.n++
	c, err := b.p.Store().Commit(b.Context(), store.CommitRequest{CommitAsked: api.CommitAsked{Dataset: dataset, Branch: branch, Request: fmt.Sprint(b.n)},
		Announce: func(context.Context, api.Commit) error { return nil }},
		[]api.Change{{File: api.File{Path: "text", Digest: digest, Size: int64(len(text))}}})
	must(b, err)
	return c.Commit
}

func (b *bots) making(bot string) *fold.Making {
	b.Helper()
	m, err := b.p.Ledger().Making(b.Context(), "intent", bot)
	must(b, err)
	return m
}

func (b *bots) model(bot string) *fold.Model {
	b.Helper()
	m, err := b.p.Ledger().Model(b.Context(), "intent/"+bot)
	must(b, err)
	return m
}

func (b *bots) giveEverything(bot string) {
	b.Helper()
	at := b.commit("bots/"+bot, "the words of "+bot, "")
	must(b, b.p.Store().Branch(b.Context(), "bots/"+bot, "aside", at))
	b.publish(eventOf("new-data", "first", bot))
	b.soon("the first model is the champion", func() bool { return b.model(bot).Champion == 1 })
	b.commit("bots/"+bot, "the slow words of "+bot, "")
	b.publish(eventOf("new-data", "second", bot))
	b.soon("a run is at work", func() bool { m := b.making(bot); return m.Live != nil && b.logged(m.Live.ID, "begun-"+bot) })
	b.publish(eventOf("new-data", "third", bot))
	b.soon("another waits", func() bool { return b.making(bot).Waiting != nil })
	b.publish(eventOf("order", "o", bot))
	b.soon("it has a dead letter", func() bool {
		var all api.DeadLetters
		b.get("/api/v1/dead-letters?key="+bot, &all)
		return all.Total == 1
	})
	b.publish(eventOf("message", "m", bot))
	b.soon("events wait", func() bool { return b.parkedCount() == 1 || bot == stays && b.parkedCount() == 2 })
}

func (b *bots) logged(run, what string) (found bool) {
	must(b, b.p.Store().ReadLog(b.Context(), run, 1, 0, false, func(_ int, chunk []byte) error {
		found = found || strings.Contains(string(chunk), what)
		return nil
	}))
	return found
}

// parkedCount returns how many events are parked for the slow trigger.
func (b *bots) parkedCount() int64 {
	var all api.Triggers
	b.get("/api/v1/triggers", &all)
	for _, t := range all.Triggers {
		if t.Name == "slow" && t.Numbers != nil {
			return t.Numbers.Parked
		}
	}
	return -1
}

func (b *bots) ask(end *api.KeyEnd, body string) {
	b.Helper()
	res, err := http.Post(b.url+"/api/v1/keys/forget", "application/json", strings.NewReader(body))
	must(b, err)
	defer res.Body.Close()
	must(b, json.NewDecoder(res.Body).Decode(end))
}

// receiptOf waits for the receipt on the log.
func (b *bots) receiptOf(bot string) (r tidemill.KeyForgotten) {
	b.Helper()
	b.soon("the receipt is on the log", func() bool {
		return b.eachEvent(tidemill.StreamFacts, func(e *broker.Incoming) bool {
			return e.Type == tidemill.TypeKeyForgotten && e.Subject == bot && json.Unmarshal(e.Data, &r) == nil
		})
	})
	return r
}

// eachEvent reads a stream until fn returns true.
func (b *bots) eachEvent(stream string, fn func(*broker.Incoming) bool) (found bool) {
	b.Helper()
	ends, err := b.p.Broker().Ends(b.Context(), stream)
	must(b, err)
	for _, end := range ends {
		at := broker.Position{Stream: stream, Partition: end.Partition}
		for !found && at.Offset < end.Offset {
			next, err := b.p.Broker().Read(b.Context(), at, 1<<20, func(e *broker.Incoming) bool {
				found = found || e.Err == nil && fn(e)
				return !found
			})
			must(b, err)
			if next == at.Offset {
				break
			}
			at.Offset = next
		}
	}
	return found
}

// checkReceipt checks that the preview and the receipt list all of the bot's data.
func (b *bots) checkReceipt(there *tidemill.KeyForgotten, end tidemill.KeyForgotten) {
	b.Helper()
	for name, r := range map[string]*tidemill.KeyForgotten{"the preview": there, "the receipt": &end} {
		if len(r.Runs) != 1 || len(r.Runs[0].Runs) != 3 || len(r.Models) != 1 || r.Models[0] != (tidemill.GoneModel{Model: "intent/" + gone, Versions: 1}) ||
			len(r.Datasets) != 1 || r.Datasets[0] != (tidemill.GoneDataset{Dataset: "bots/" + gone, Branches: 2, Commits: 3}) || r.Letters != 1 {
			b.Errorf("%s is %+v", name, r)
		}
	}
	if end.Reason == "" || end.Key != gone || end.Runs[0].At.Offset < 0 {
		b.Errorf("the receipt is %+v", end)
	}
	b.soon("who hears of the ends of bots hears of this one", func() bool { return b.to.has("/mourners " + gone) })
}

// checkForgotten looks for the bot on every stream, in every key of Redis and in every file of the
// store.
func (b *bots) checkForgotten(end tidemill.KeyForgotten) {
	b.Helper()
	places := map[string]bool{}
	for _, r := range end.Remains {
		places[r.Place] = true
	}
	infos, err := b.p.Broker().Streams(b.Context())
	must(b, err)
	for _, info := range infos {
		if b.eachEvent(info.Name, func(e *broker.Incoming) bool { return names(e, gone) }) && !places["stream "+info.Name] {
			b.Errorf("the stream %s has something of the bot, and the receipt does not say so", info.Name)
		}
	}
	if !places["the ledger"] || !places["the store"] {
		b.Errorf("the receipt speaks of %v", end.Remains)
	}
	// The ledger is updated after the log, so the bot is removed from Redis and the store after the
	// receipt.
	b.soonNone("Redis", func() []string {
		return slices.DeleteFunc(b.inRedis(gone), func(found string) bool { return strings.Contains(found, "intent/"+gone) })
	})
	b.soonNone("the store", func() []string {
		return slices.DeleteFunc(b.inStore(gone), func(name string) bool {
			return strings.HasPrefix(name, "objects/") || strings.HasPrefix(name, "trees/")
		})
	})
	b.collect()
	if left := b.inStore(gone); len(left) > 0 {
		b.Errorf("behind a collection the store has %v", left)
	}
}

// soonNone waits until no forbidden entry is left.
func (b *bots) soonNone(place string, left func() []string) {
	b.Helper()
	var last []string
	defer func() {
		if len(last) > 0 {
			b.Logf("%s has %q", place, last)
		}
	}()
	b.soon("nothing is left in "+place, func() bool { last = left(); return len(last) == 0 })
}

func names(e *broker.Incoming, what string) bool {
	if strings.Contains(string(broker.MarshalStructured(&e.View))+string(e.Key)+string(e.Data), what) {
		return true
	}
	return slices.ContainsFunc(e.Foreign, func(h broker.Header) bool { return strings.Contains(string(h.Value), what) })
}

// inRedis returns the keys and values that contain a text.
func (b *bots) inRedis(what string) (found []string) {
	b.Helper()
	client, ctx := b.p.Redis(), b.Context()
	keys, err := client.Keys(ctx, "*").Result()
	must(b, err)
	look := func(key string, values ...string) {
		for _, v := range values {
			if strings.Contains(key+v, what) {
				found = append(found, key+": "+v)
			}
		}
	}
	for _, key := range keys {
		switch typ := client.Type(ctx, key).Val(); typ {
		case "hash":
			for field, value := range client.HGetAll(ctx, key).Val() {
				look(key, field+" "+value)
			}
		case "set":
			look(key, client.SMembers(ctx, key).Val()...)
		case "zset":
			look(key, client.ZRange(ctx, key, 0, -1).Val()...)
		case "string":
			look(key, client.Get(ctx, key).Val())
		case "list":
			look(key, client.LRange(ctx, key, 0, -1).Val()...)
		case "stream":
			for _, m := range client.XRange(ctx, key, "-", "+").Val() {
				look(key, fmt.Sprint(m.Values))
			}
		default:
			b.Errorf("Redis has a %s under %s, which nobody looks into", typ, key)
		}
	}
	return found
}

func (b *bots) storeDir() string { return filepath.Join(b.dir, "data", "store") }

// inStore returns the files whose name or content contains a text.
func (b *bots) inStore(what string) (found []string) {
	b.Helper()
	must(b, filepath.WalkDir(b.storeDir(), func(at string, d fs.DirEntry, err error) error {
		var data []byte
		if err == nil && !d.IsDir() {
			data, err = os.ReadFile(at)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was removed meanwhile
		}
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(b.storeDir(), at)
		if strings.Contains(name, what) || strings.Contains(string(data), what) {
			found = append(found, filepath.ToSlash(name))
		}
		return nil
	}))
	return found
}

// collect runs the store's garbage collection as if the grace had passed. It keeps the objects that
// the ledger names.
func (b *bots) collect() {
	b.Helper()
	s, err := store.Open(b.Context(), store.Options{URL: b.storeDir(), Grace: time.Nanosecond})
	must(b, err)
	defer s.Close()
	known := map[string]bool{}
	var trees []string
	m := b.making(stays)
	for _, id := range append(slices.Clone(m.Ended), m.Live.ID, m.Waiting.ID) {
		known[id] = true
		run, err := b.p.Ledger().Run(b.Context(), id)
		must(b, err)
		if run.Result != nil {
			trees = append(trees, run.Result.Artifact)
		}
	}
	versions, err := b.p.Ledger().Versions(b.Context(), "intent/"+stays)
	must(b, err)
	for _, v := range versions {
		trees = append(trees, v.Artifact, v.Report)
	}
	_, err = s.Collect(b.Context(), store.Collection{Trees: slices.DeleteFunc(trees, func(t string) bool { return t == "" }), Runs: func(run string) bool { return known[run] }})
	must(b, err)
}

// checkUntouched checks that the other bot's data has not changed.
func (b *bots) checkUntouched(bot string) {
	b.Helper()
	m := b.making(bot)
	if m.Live == nil || m.Live.Cancel != nil || m.Waiting == nil || len(m.Ended) != 1 {
		b.Errorf("of the other bot's runs there are %+v", m)
	}
	if v := b.model(bot); v.Champion != 1 {
		b.Errorf("the other bot's model is %+v", v)
	}
	var all api.DeadLetters
	if b.get("/api/v1/dead-letters", &all); all.Total != 1 || all.DeadLetters[0].Key != bot {
		b.Errorf("the dead letters are %+v", all)
	}
	for _, dataset := range []string{"bots/" + bot, "shared/words"} {
		if _, err := b.p.Store().Head(b.Context(), dataset, "main"); err != nil {
			b.Errorf("the dataset %s: %v", dataset, err)
		}
	}
}

// checkDelivered lets the slow trigger deliver. The trigger must deliver the other bot's event, but
// no event of the forgotten bot.
func (b *bots) checkDelivered() {
	b.Helper()
	b.to.heal()
	b.soon("the other bot's event comes", func() bool { return b.to.has("/slow " + stays) })
	b.soon("nothing is parked any more", func() bool { return b.parkedCount() == 0 })
	if b.to.has("/slow " + gone) {
		b.Error("an event of the bot that has gone was delivered")
	}
}

// trainAgain trains the forgotten bot again.
func (b *bots) trainAgain(bot string) {
	b.Helper()
	b.commit("bots/"+bot, "the new words of "+bot, "")
	b.publish(eventOf("new-data", "anew", bot))
	b.soon("it has a champion again", func() bool { return b.model(bot).Champion > 0 })
	b.publish(eventOf("message", "anew too", bot))
	b.soon("its events come again", func() bool { return b.to.has("/slow " + bot) })
}
