// Package parked has the code that the dispatcher and the scorers share for events on a parked
// stream. Such an event is stored with a header of its owner. An index of these events is in
// memory, and a mark in the committed metadata is the offset from which a rebuild reads.
//
// The package has the codec of the header, the set of offsets that determines the mark, the reading
// of a rebuild, a compact list of records, a cache of records, and the rule for renewal. The owners have the indexes: the
// dispatcher orders events per trigger and key and retries them; a scorer's events wait for models.
package parked
