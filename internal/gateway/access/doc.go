// Package access says who asks at the door and what they may do. A caller has
// a token of ours, of which the access file holds the hash, or a JWT of the
// issuer that the file names.
//
// The door asks a Guard for the Caller behind each request's Authorization
// header, and then the Caller whether it may do what it asks for. What the file
// says applies within a second of its change. Nothing here prints or logs a
// token.
package access
