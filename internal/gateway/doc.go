// Package gateway is the HTTP server through which other systems publish events, read
// streams and control Tidemill. See DESIGN.md.
package gateway
