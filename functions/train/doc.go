// Package train is the function of ours that asks for runs: an event in, a
// run.requested on the log for each key that it concerns. It answers with no
// events, as what it says is a fact.
//
// What an event asks for follows from the event and the config alone, and a
// request is named after its event: the same event, delivered again, asks for
// nothing new.
package train
