package broker

import "tidemill.dev/broker/internal/wire"

// RecordOf is the record that an event is published as, so that a dead letter
// can hold it whole. It points into the view.
func RecordOf(v *View) *DeadRecord {
	var e encoder
	r := &DeadRecord{}
	r.Key, r.Value, r.Headers = e.encode(v, nil)
	return r
}

// View reads the event that the record carries. It points into the record.
func (r *DeadRecord) View() (View, error) {
	var v View
	err := decodeRecord(&wire.Record{Key: r.Key, Value: r.Value, Headers: r.Headers}, &v)
	return v, err
}
