package deliver

import (
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
)

// If a source stream was grown by hand, its new partition has no parked partition: only
// that partition waits, until the parked stream has grown too.
func TestAPartitionWithoutACompanionWaits(t *testing.T) {
	t.Parallel()
	w := newInstall(t, 2)
	to := newSink(t, nil)
	w.trigger("a", to.url, nil)
	grow := func(stream string) {
		_, err := w.b.EnsureStreams(w.ctx, []broker.StreamSpec{{Name: stream, Partitions: 3}}, broker.EnsureOptions{Reorder: true})
		w.must(err)
	}
	w.publish(1, 1)
	grow(tidemill.StreamEvents)
	d := w.open()
	if c := d.Check(); c.Status != api.Degraded {
		t.Errorf("it is %s: %s", c.Status, c.Detail)
	}
	direct := func(partition int32, id string) {
		sent := make(chan error, 1)
		w.p.SendTo(w.ctx, tidemill.StreamEvents, partition, &broker.View{ID: id, Source: "/shop", Type: "order", Subject: "k" + id}, func(_ broker.Receipt, err error) { sent <- err })
		w.must(<-sent)
	}
	for partition, id := range []string{"10", "11"} {
		direct(int32(partition), id)
	}
	w.waitFor("the others are served", func() bool { return to.count() == 2 })
	w.waitFor("the producer knows it", func() bool {
		sent := make(chan error, 1)
		w.p.SendTo(w.ctx, tidemill.StreamEvents, 2, &broker.View{ID: "12", Source: "/shop", Type: "order", Subject: "k12"}, func(_ broker.Receipt, err error) { sent <- err })
		return <-sent == nil
	})
	direct(0, "13")
	w.waitFor("the others are served on", func() bool { return to.count() == 3 })
	grow(tidemill.Parked(tidemill.StreamEvents))
	w.waitFor("it is served", func() bool { return to.count() == 4 })
	w.waitFor("all is well", func() bool { return d.Check().Status == api.OK && w.committed() })
}
