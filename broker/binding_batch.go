package broker

import "errors"

// ErrTooMany: a batch has more events than the reader takes at once.
var ErrTooMany = errors.New("batch has too many events")

// usualExtensions is how many extensions of an event memory is set aside for.
const usualExtensions = 4

// UnmarshalBatch reads the JSON batch format, an array of events, and calls
// each with every element in its order. One that is no event does not spoil the
// others: its err says why, and its view holds what was read until then. An
// error of the whole, for what is no array or has more than limit elements, comes
// before the first call.
//
// Every view is one of its own, to be kept as long as b is: they point into it.
func UnmarshalBatch(b []byte, limit int, each func(i int, v *View, err error)) error {
	all, err := elements(b, limit)
	if err != nil {
		return err
	}
	views := make([]View, len(all))
	spare := make([]Attribute, usualExtensions*len(all))
	for i := range all {
		v := &views[i]
		v.Extensions = spare[:0]
		err := unmarshalValid(all[i], v)
		if n := len(v.Extensions); n <= len(spare) {
			v.Extensions = v.Extensions[:n:n] // an append must not reach the next event's
			spare = spare[n:]
		}
		each(i, v, err)
	}
	return nil
}
