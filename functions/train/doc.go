// Package train is Tidemill's own function that requests runs: for each key that an event concerns
// it writes a run.requested to the log. It returns no events, because a request is a fact.
//
// The requests follow from the event and the config alone, and a request's id derives
// from its event. An event that is delivered again therefore requests nothing new. A tick for all keys
// stores after each part how far it has come, because it may take more than one delivery.
package train
