package embedded

import (
	"crypto/tls"
	"log/slog"
	"time"
)

const (
	anyPort        = "127.0.0.1:0"
	retentionEvery = 30 * time.Second
)

// Options say where the servers keep their data and where they listen. The
// zero value is both servers in memory on free loopback ports.
type Options struct {
	// Dir holds the data and a lock; empty keeps everything in memory.
	Dir string
	// Kafka and Redis are host:port to listen on; empty is a free loopback
	// port, port 0 a free one of that host.
	Kafka, Redis string
	// Public allows a host that is not loopback. Without Users whoever
	// reaches the port owns the data, and Redis asks for no password.
	Public bool
	// Sync makes an acknowledged batch survive a power cut: one fsync each.
	Sync bool
	// Brokers is the number of brokers of the one cluster, 1 by default. More
	// are for tests of moving leaders; with a fixed port they take the next.
	Brokers int
	// Advertise is the address that Kafka's clients are told, where something
	// that passes their bytes on stands before it; of one broker.
	Advertise string
	// TLS, if given, is what Kafka's listeners serve.
	TLS *tls.Config
	// Users, if given, are who may speak to Kafka.
	Users []User
	// Retention is how often what has expired is removed, 30 s by default.
	Retention time.Duration
	// Logger is told what the servers have to say; nil is silence.
	Logger *slog.Logger
}

// User may authenticate to the Kafka server.
type User struct {
	// Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
	Mechanism, Name, Password string
}

// String is the user without the password.
func (u User) String() string { return u.Mechanism + " " + u.Name }

// GoString is the user without the password.
func (u User) GoString() string { return u.String() }

func (o Options) withDefaults() Options {
	if o.Kafka == "" {
		o.Kafka = anyPort
	}
	if o.Redis == "" {
		o.Redis = anyPort
	}
	if o.Brokers < 1 {
		o.Brokers = 1
	}
	if o.Retention <= 0 {
		o.Retention = retentionEvery
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}
