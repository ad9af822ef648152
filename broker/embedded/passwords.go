package embedded

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tidemill.dev/config"
)

// With Options.Passwords each server asks for a password. The passwords are in two files of the
// data folder that only their owner can read. By SCRAM a client proves that it knows Kafka's
// password without sending it. So a program of another user that listens on Kafka's port while
// Tidemill is stopped does not get the password. Redis has no such proof. Therefore Redis has a
// password of its own.

const (
	// UserName is the user of Kafka with Options.Passwords. Redis has its default user only.
	UserName = "tidemill"
	// Mechanism is the SASL mechanism of that user.
	Mechanism = "SCRAM-SHA-256"

	plainMechanism = "PLAIN"
	minPassword    = 16
)

// KafkaPasswordFile returns the path of Kafka's password in a data folder.
func KafkaPasswordFile(dir string) string { return filepath.Join(dir, "kafka-password") }

// RedisPasswordFile returns the path of Redis's password in a data folder.
func RedisPasswordFile(dir string) string { return filepath.Join(dir, "redis-password") }

// withUsers returns the options with the passwords of the data folder, if Passwords is set. If Kafka
// has users, this package gets a user of its own.
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
		o.inside = User{plainMechanism, "tidemill-inside", rand.Text()}
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

// saslOptions make Kafka accept the users only.
func (o Options) saslOptions() []kfake.Opt {
	if len(o.Users) == 0 {
		return nil
	}
	opts := []kfake.Opt{kfake.EnableSASL()}
	for _, u := range append(o.Users[:len(o.Users):len(o.Users)], o.inside) {
		opts = append(opts, kfake.Superuser(u.Mechanism, u.Name, u.Password))
	}
	return opts
}

// logIn authenticates a connection of this package as its own user. Without users it does nothing.
func (u User) logIn(conn net.Conn) error {
	if u.Name == "" {
		return nil
	}
	hello := kmsg.NewPtrSASLHandshakeRequest()
	hello.SetVersion(1)
	hello.Mechanism = u.Mechanism
	offered := kmsg.NewPtrSASLHandshakeResponse()
	if err := roundTrip(conn, hello, offered); err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	proof := kmsg.NewPtrSASLAuthenticateRequest()
	proof.SASLAuthBytes = []byte("\x00" + u.Name + "\x00" + u.Password)
	answer := kmsg.NewPtrSASLAuthenticateResponse()
	if err := roundTrip(conn, proof, answer); err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	return errors.Join(kerr.ErrorForCode(offered.ErrorCode), kerr.ErrorForCode(answer.ErrorCode))
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
