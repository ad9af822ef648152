// Package tidemill is the vocabulary of Tidemill: types of events, names, ids and the data of
// events. It does no I/O, and imports only the standard library and the CloudEvents event type.
package tidemill
