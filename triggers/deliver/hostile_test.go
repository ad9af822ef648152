package deliver

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"

	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// After a 101 net/http leaves the connection to the caller, and no context ends a read of
// it. A subscriber that answers 101 and then falls silent must not keep the attempt.
func TestPostEndsAtAnAnswerThatSwitchesProtocols(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		held := make(chan net.Conn, 1)
		s, _ := overPipes(t, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: nothing\r\n\r\n"))
			held <- conn
		}, func(c *config.Trigger) { c.Delivery.Timeout = 5 * time.Second })
		defer func() { _ = (<-held).Close() }()
		ended := make(chan attemptResult, 1)
		go func() { ended <- s.post(t.Context(), posted(), 1) }()
		time.Sleep(6 * time.Second)
		select {
		case o := <-ended:
			expect(t, o, refused, "101")
		default:
			t.Error("the attempt lasts longer than its timeout")
		}
	})
}

// A read event may have attributes that cannot be published, and with its parking record
// it may be larger than without. It can still be parked: otherwise it would block all
// later events of its partition for ever.
func TestWhateverIsReadCanBeParked(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	to := newSink(t, func(string, int) int { return 503 })
	w.trigger("a", to.url, func(t *config.Trigger) { t.Delivery.Attempts, t.Delivery.Backoff.First = 1000, 400*time.Millisecond })
	d := w.open()
	full := broker.View{ID: "full", Source: "/shop", Type: "order", Subject: "k1"}
	for n := range 248 {
		full.Extensions = append(full.Extensions, broker.Attribute{Name: fmt.Sprint("x", n), Value: "y"})
	}
	_, err := w.p.Publish(w.ctx, "events", &full)
	w.must(err)
	client := &kafka.Client{Addr: kafka.TCP(w.servers.Kafka()), Transport: &kafka.Transport{}}
	odd := func(id string, more ...kafka.Header) kafka.Record {
		return kafka.Record{Key: kafka.NewBytes([]byte("k1")), Value: kafka.NewBytes([]byte("{}")), Headers: append([]kafka.Header{{Key: "ce_specversion", Value: []byte("1.0")},
			{Key: "ce_id", Value: []byte(id)}, {Key: "ce_source", Value: []byte("/shop")}, {Key: "ce_type", Value: []byte("order")}}, more...)}
	}
	res, err := client.Produce(w.ctx, &kafka.ProduceRequest{Topic: w.names.Topic("events"), RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(
		odd("subject", kafka.Header{Key: "ce_subject", Value: []byte("a\x01b")}), odd("content", kafka.Header{Key: "content-type", Value: []byte("json")}),
		odd("attribute", kafka.Header{Key: "ce_correlationid", Value: []byte("\u0085")}))})
	if err == nil {
		err = res.Error
	}
	w.must(err)
	w.publish(1, 1)
	w.waitFor("all are parked and committed", func() bool { return parkedOf(d, "a") == 5 && w.committed() })
	w.close(d)
	d = w.open()
	to.set(nil)
	w.waitFor("all have come", func() bool { return to.count() == 5 })
	w.waitFor("nothing is parked", func() bool { return parkedOf(d, "a") == 0 })
}

// An event that is not accepted leaves a dead letter, whatever its attributes.
func TestWhateverIsReadCanBeBuried(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 1)
	to := newSink(t, func(string, int) int { return 400 })
	w.trigger("a", to.url, nil)
	w.open()
	client := &kafka.Client{Addr: kafka.TCP(w.servers.Kafka()), Transport: &kafka.Transport{}}
	res, err := client.Produce(w.ctx, &kafka.ProduceRequest{Topic: w.names.Topic("events"), RequiredAcks: kafka.RequireAll, Records: kafka.NewRecordReader(kafka.Record{
		Key: kafka.NewBytes([]byte("k1")), Headers: []kafka.Header{{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte("a\x01")}, {Key: "ce_source", Value: []byte("/shop")},
			{Key: "ce_type", Value: []byte("order")}, {Key: "ce_subject", Value: []byte("a\x01b")}, {Key: "ce_correlationid", Value: []byte("\u0085")}, {Key: "ce_traceparent", Value: []byte("\x02")}}})})
	if err == nil {
		err = res.Error
	}
	w.must(err)
	w.waitFor("there is a letter and the group has gone on", func() bool { return len(w.letters()) == 1 && w.committed() })
	l := w.letters()[0]
	v, err := l.Original()
	if err != nil || v.ID != "a\x01" || v.Subject != "a\x01b" || l.Trigger != "a" {
		t.Errorf("%+v of %+v: %v", v, l, err)
	}
}
