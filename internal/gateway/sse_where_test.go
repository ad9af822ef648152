package gateway

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

func where(condition string) string { return "&where=" + url.QueryEscape(condition) }

// A limit counts the sent events, and an id is also past the events that were left out.
func TestTailSendsWhatIsWanted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var even []string
	for i := range 40 {
		id := fmt.Sprint("e", i)
		w.post("/events", "", eventHeaders(id, "ce-subject", fmt.Sprint("bot-", i), "ce-even", fmt.Sprint(i%2 == 0))...)
		if i%2 == 0 {
			even = append(even, id)
		}
	}
	w.post("/events", "", eventHeaders("lacks it")...)
	condition := where("even = TRUE AND subject LIKE 'bot-%'")
	if got, _ := w.listen("events/events?from=beginning&follow=false" + condition).allIDs(); !haveSame(got, even) {
		t.Errorf("wanted are %v, and sent %v", even, got)
	}
	some, at := w.listen("events/events?from=beginning&limit=7" + condition).allIDs()
	rest, _ := w.listen("events/events?follow=false"+condition, lastEventID, at).allIDs()
	if len(some) != 7 || !haveSame(slices.Concat(some, rest), even) {
		t.Errorf("a limit of 7 gives %v, and then %v", some, rest)
	}
	if none, _ := w.listen("events/events?from=beginning&follow=false" + where("missing = 1")).allIDs(); len(none) != 0 {
		t.Errorf("who wants what there is not gets %v", none)
	}
}

// While no event matches, a sign of life has the current position. A reader that resumes from
// it misses no event and gets none twice, even without a condition.
func TestTailComesBackBehindWhatIsNotWanted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(o *Options) { o.Limits.Keepalive = 50 * time.Millisecond })
	l := w.listen("events/events?from=beginning" + where("wanted = 'yes'"))
	began := l.firstID()
	for i := range 30 {
		w.post("/events", "", eventHeaders(fmt.Sprint("e", i), "ce-subject", fmt.Sprint("bot-", i))...)
	}
	_, end := w.listen("events/events?from=end&follow=false").allIDs()
	for at := began; at != end; {
		b, err := l.nextBlock()
		if err != nil || b.data != "" || b.comment != "keepalive" {
			t.Fatalf("%+v, %v", b, err)
		}
		if b.id != "" {
			at = b.id
		}
	}
	w.post("/events", "", eventHeaders("after", "ce-wanted", "yes")...)
	if line, _ := l.next(); idOf(t, line) != "after" {
		t.Errorf("wanted is %+v", line)
	}
	if got, _ := w.listen("events/events?follow=false", lastEventID, end).allIDs(); !slices.Equal(got, []string{"after"}) {
		t.Errorf("behind the last sign of life comes %v", got)
	}
	if got, _ := w.listen("events/events?follow=false"+where("wanted = 'yes'"), lastEventID, began).allIDs(); !slices.Equal(got, []string{"after"}) {
		t.Errorf("from the beginning on %v is wanted", got)
	}
}

// A record that is not an event matches no condition, but is shown anyway.
func TestTailTellsWhatIsNoEventWhateverIsWanted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	client := &kafka.Client{Addr: kafka.TCP(w.servers.Kafka()), Transport: &kafka.Transport{}}
	topic := must1(w.config.Names())(t).Topic("scored")
	waitFor(t, func() bool {
		res, err := client.Produce(t.Context(), &kafka.ProduceRequest{Topic: topic, Partition: 1, RequiredAcks: kafka.RequireAll,
			Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("no event\n"))})})
		return err == nil && res.Error == nil
	})
	w.post("/streams/scored", "", eventHeaders("unwanted")...)
	l := w.listen("scored/events?from=beginning&limit=1" + where("wanted = 'yes'"))
	l.firstID()
	if line, _ := l.next(); line.Error == "" || string(line.Data) != "no event\n" {
		t.Errorf("%+v", line)
	}
	if got, _ := w.listen("scored/events?from=beginning&follow=false&where=").allIDs(); len(got) != 2 {
		t.Errorf("without a condition come %v", got)
	}
}

// A reader cannot keep the gateway busy with a single event.
func TestTailRefusesAConditionThatTakesTooLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	bomb := "subject LIKE '%" + strings.Repeat("a", 7000) + "b_" + strings.Repeat("a", 7000) + "%'"
	if r := w.do(http.MethodGet, "/api/v1/streams/events/events?from=beginning&follow=false"+where(bomb), ""); r.StatusCode != http.StatusBadRequest || !strings.Contains(r.body, "too long") {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}
