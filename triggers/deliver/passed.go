package deliver

import "tidemill.dev/triggers/letters"

// passed reports whether an item's event comes from before the end of its key:
// then nobody gets it any more, however long it has waited and whoever asks for
// it again. It is asked right before each attempt, and so needs no look through
// what waits: what rests on the parked log is found out when its time comes.
func (d *Dispatcher) passed(i *item) bool {
	if i.lost != "" {
		return false // there is no event to be told of; its letter says so
	}
	v := &i.event.view
	key := v.Subject
	if key == "" {
		key = string(v.Key)
	}
	return d.acts.Now().Passed(key, v.Type, i.part.stream, i.part.number, i.rec.source)
}

// pass ends an item without a delivery and without a dead letter, which would
// hold the event for ever. That its key has gone stands among the acts.
func (d *Dispatcher) pass(i *item) {
	d.o.Logger.Info("an event is not delivered, as its key has gone", "trigger", i.chain.line.name,
		"stream", i.part.stream, "partition", i.part.number, "offset", i.rec.source, "event", i.event.view.ID)
	if err := d.resolve(i, letters.Receipt{Outcome: letters.DroppedByAct, Reason: "the key has gone"}); err != nil {
		return // its partition is another's, who ends it anew
	}
	i.part.home.do(func(p *partition, now moment) { p.ended(i, now) })
}
