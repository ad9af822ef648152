// Package cehttp implements the CloudEvents HTTP protocol binding 1.0: it reads and writes events
// in the headers and bodies of requests and responses. In binary mode each attribute is a header
// ce-<name>, except datacontenttype, which is Content-Type; the body is the data. In structured
// mode the body is an event as JSON, in batched mode a JSON array of events.
//
// The package does no I/O and has no size limits; the caller that reads the body must
// limit it. An event is returned only if it passes [broker.View.Validate]; an error about
// an attribute is a [broker.AttributeError]. Headers must be in net/http's canonical
// form; the package returns only that form.
package cehttp
