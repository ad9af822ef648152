// Package cli is the commands of the tidemill binary. A command is a struct whose fields are its flags; it talks to a gateway or
// straight to Kafka. The package is the top of the house: it may import every wing, and only cmd/tidemill imports it.
package cli
