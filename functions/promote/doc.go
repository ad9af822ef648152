// Package promote is Tidemill's own function that judges models. When a run ends it
// writes the new version, the gate's verdict and, if the gate passes, the new champion
// to the log. It returns no events, because these are facts.
//
// The facts follow from the event and the log alone, and their ids derive from what
// they follow from. An event that is delivered again therefore changes nothing.
package promote
