// Package forget is Tidemill's own function that forgets keys. It receives events that
// a key has gone or shall be forgotten, and has all data of the key deleted.
//
// An event from outside is only turned into the fact tidemill.key.forgetting, at once. That fact is
// the end of the key. The deletion is named after it, and repeated until it is done.
package forget
