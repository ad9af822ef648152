package brokertest

import (
	"time"

	"tidemill.dev/broker"
)

// disturb restarts the server, and kills it where it can be killed, while
// something goes on.
func (w *world) disturb() {
	w.Helper()
	for range 2 {
		w.srv.Restart(w.T)
	}
	if w.srv.Kill != nil {
		w.srv.Kill(w.T)
	}
}

func restartPublish(w *world) {
	w.stream("events", 4)
	stop := w.flow("events", 30)
	w.disturb()
	w.wantOnLog("events", stop())
}

func restartConsume(w *world) {
	w.stream("events", 4)
	stop := w.flow("events", 30)
	y := newTally()
	a, b := w.reader("g", "events", y), w.reader("g", "events", y)
	y.more(w)
	t0 := time.Now()
	w.disturb()
	w.Logf("restarted within %s", time.Since(t0).Round(time.Millisecond))
	s := stop()
	y.wait(w, len(s.all))
	a.leave()
	b.leave()
	c := w.consumer(broker.ConsumerOptions{Group: "g", Streams: []string{"events"}})
	w.publish("events", 1, 1)
	d, err := c.Poll(w.ctx())
	w.must(err)
	if len(d.Events) != 1 {
		w.Errorf("%d events come after all had been read", len(d.Events))
	}
	d.Done()
}

func restartTransact(w *world) {
	w.stream("in", 3)
	w.stream("out", 3)
	stop := w.flow("in", 10)
	k := w.copier("g", "in", "out")
	w.soon("copies arrive", func() bool { return w.end("out") > 50 })
	w.disturb()
	s := stop()
	w.copied("in", "g")
	k.leave()
	w.wantCopies("out", s)
}
