package embedded

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/segmentio/kafka-go/sasl/scram"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/config"
)

// With Options.Passwords each server asks for a password. The passwords are in two files of the
// data folder that only their owner can read. By SCRAM a client proves that it knows Kafka's
// password without sending it. So a program of another user that listens on Kafka's port while
// Tidemill is stopped does not get the password. Redis has no such proof. Therefore the
// two passwords differ.

const (
	// UserName is the user of Kafka with Options.Passwords. Redis has its default user only.
	UserName = "tidemill"
	// Mechanism is the SASL mechanism of that user.
	Mechanism = "SCRAM-SHA-256"

	minPassword = 16
)

// KafkaPasswordFile returns the path of Kafka's password in a data folder.
func KafkaPasswordFile(dir string) string { return filepath.Join(dir, "kafka-password") }

// RedisPasswordFile returns the path of Redis's password in a data folder.
func RedisPasswordFile(dir string) string { return filepath.Join(dir, "redis-password") }

// withUsers returns the options with the passwords of the data folder, if Passwords is set. If Kafka
// has users, this package gets a user too.
func (o Options) withUsers() (_ Options, err error) {
	switch {
	case !o.Passwords:
	case o.Dir == "":
		return o, errors.New("read the passwords of the embedded servers: there is no data folder; give one")
	default:
		kafka, err := readPassword(KafkaPasswordFile(o.Dir))
		if err != nil {
			return o, fmt.Errorf("read the password of the embedded Kafka: %w", err)
		}
		o.Users = append(o.Users[:len(o.Users):len(o.Users)], User{Mechanism, UserName, kafka.Reveal()})
		if o.redis, err = readPassword(RedisPasswordFile(o.Dir)); err != nil {
			return o, fmt.Errorf("read the password of the embedded Redis: %w", err)
		}
	}
	if len(o.Users) > 0 {
		o.inside = User{Mechanism, "tidemill-inside", rand.Text()}
	}
	return o, nil
}

func readPassword(path string) (config.Secret, error) {
	text, err := config.OwnSecret(path, func() []byte { return []byte(rand.Text() + rand.Text() + "\n") })
	if err != nil {
		return config.Secret{}, err
	}
	password := strings.TrimRight(string(text), "\r\n")
	if len(password) < minPassword {
		return config.Secret{}, fmt.Errorf("%s has less than %d characters: remove it, and the next start makes a new one", path, minPassword)
	}
	return config.NewSecret(password), nil
}

// saslOptions make Kafka accept only these users and the user of this package. Without users of the
// server it accepts every client.
func (o Options) saslOptions(users ...User) []kfake.Opt {
	if o.inside.Name == "" {
		return nil
	}
	opts := []kfake.Opt{kfake.EnableSASL(), kfake.Superuser(o.inside.Mechanism, o.inside.Name, o.inside.Password)}
	for _, u := range users {
		opts = append(opts, kfake.Superuser(u.Mechanism, u.Name, u.Password))
	}
	return opts
}

// logIn authenticates a connection of this package as its own user. Without users it does nothing.
func (u User) logIn(ctx context.Context, conn net.Conn) error {
	if u.Name == "" {
		return nil
	}
	m, err := scram.Mechanism(scram.SHA256, u.Name, u.Password)
	if err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	hello := kmsg.NewPtrSASLHandshakeRequest()
	hello.SetVersion(1)
	hello.Mechanism = u.Mechanism
	if err := roundTrip(conn, hello, kmsg.NewPtrSASLHandshakeResponse()); err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	session, ours, err := m.Start(ctx)
	for done := false; err == nil && !done; {
		proof := kmsg.NewPtrSASLAuthenticateRequest()
		proof.SASLAuthBytes = ours
		answer := kmsg.NewPtrSASLAuthenticateResponse()
		if err = roundTrip(conn, proof, answer); err == nil {
			done, ours, err = session.Next(ctx, answer.SASLAuthBytes) // also fails at the answer of an error
		}
	}
	if err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	return nil
}

// refuseEmptyPasswords works around a fault in kfake: with PLAIN an unknown user with an empty password
// may do everything.
func refuseEmptyPasswords(c *kfake.Cluster) {
	c.ControlKey(int16(kmsg.SASLAuthenticate), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.SASLAuthenticateRequest)
		if !bytes.HasSuffix(req.SASLAuthBytes, []byte("\x00")) { // PLAIN is user, NUL, password; SCRAM has no NUL
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
		return resp, nil, true
	})
}

// closeFolder keeps other users of the machine out of Kafka's folder, because Kafka makes its files
// readable for everyone. The data folder itself may be one that the user has made.
func closeFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make Kafka's folder: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("keep other users out of Kafka's folder: %w", err)
	}
	return nil
}
