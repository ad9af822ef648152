// Package keys finds the keys that an event is about: its subject and partitionkey, and the values
// that recipes, scorers and the function forget take from other places of the event.
package keys
