// Package forget is the function of ours that ends keys: it hears that one has
// gone, or that somebody wants it forgotten, and has all that belongs to it taken
// away.
//
// An event from outside only becomes our fact tidemill.key.forgetting, at once:
// that fact is the key's end, and the rest is named after it and done by it, as
// often as it takes.
package forget
