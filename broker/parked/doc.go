// Package parked is what the dispatcher and the scorers share about events that
// wait on a parked stream. An event waits there under a header of its owner; an
// index of the waiting events is in memory, and a mark in the committed metadata
// says from which offset a rebuild has to read.
//
// The package has the codec of the header, the set of offsets that give the mark,
// the reading of a rebuild, a cache of records, and the rule for renewal. The
// indexes themselves stay with their owners: the dispatcher orders events per
// trigger and key and retries them, a scorer waits for models.
package parked
