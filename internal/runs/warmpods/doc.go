// Package warmpods is the book of pods that have done their run and linger: which
// wait for another, and who gets which. It lies in Redis, so that whoever
// launches finds what waits at any gateway. A flush of it loses nothing but
// warmth: the pods that wait are written down anew within a second, and a run
// that was given to one and never reached it counts as lost, and gets another
// attempt.
package warmpods
