// Package tidemill is the domain of Tidemill, pure: what an event is called,
// where it goes, how an id follows from its cause. It imports the standard
// library and the CloudEvents event type, decides and does no I/O.
package tidemill
