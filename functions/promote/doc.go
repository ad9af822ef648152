// Package promote is Tidemill's own function that judges models. When a run ends it
// writes the new version, the gate's verdict and, if the gate passes, the new champion
// to the log. It returns no events, because these are facts.
//
// The facts depend only on the event and the log, and so do their ids. An event that is delivered again therefore changes nothing.
package promote
