// Package access authenticates the callers of the gateway and decides their rights. A caller sends
// a token whose hash is in the access file, or a JWT of the issuer that the access file names.
//
// The gateway asks a Guard for the Caller of each request's Authorization header, and then asks the
// Caller for the right to do the request. A change of the access file applies within a second. The
// package prints and logs no token.
package access
