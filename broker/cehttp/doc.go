// Package cehttp is the CloudEvents HTTP protocol binding 1.0: it reads events
// from and writes them to the headers and body of a request or a response, both
// alike. In binary mode an attribute is a header ce-<name>, except for
// datacontenttype, which is Content-Type, and the body is the data. In
// structured mode the body is an event as JSON, in batched mode a JSON array
// of events.
//
// It is pure: it does no I/O and knows no limits of bytes; who reads the body
// bounds it. What is read passes [broker.View.Validate], or there is an error;
// one that is about an attribute is a [broker.AttributeError]. Headers must be
// in net/http's canonical form, which is the only one that it hands out.
package cehttp
