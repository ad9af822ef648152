// Package gateway is the gateway: the HTTP door through which other systems publish
// events and look at streams. See DESIGN.md.
package gateway
